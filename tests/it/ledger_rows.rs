//! What every ledger must do, a line each.

use crate::scenario::{OnMemory, run};

/// Windows are a second or two, so that a ledger on real time can run them too.
pub const ROWS: &[&str] = &[
    // capacity
    "A 10/2s | hit A10 = ok | hit A1 = over A | used A 10",
    "A 10/2s | hit A11 = over A | used A 0",
    "A 0/2s | hit A1 = over A | used A 0",
    "A 1/2s | hit A1 = ok | hit A1 = over A",
    "A 9223372036854775807/2s | hit A9223372036854775807 = ok | hit A1 = over A",
    "A 5/2s | hit A18446744073709551615 = over A | used A 0",
    // all together or not at all
    "A 10/2s | B 3/2s | hit A5 B3 = ok | hit A5 B1 = over B | used A 5 | used B 3",
    "A 3/2s | B 10/2s | hit A3 B5 = ok | hit A1 B5 = over A | used A 3 | used B 5",
    "A 2/2s | B 2/2s | C 9/2s | hit A2 B2 C2 = ok | hit A1 B1 C1 = over A,B | used C 2",
    "A 9/2s | B 2/2s | C 2/2s | hit B2 C2 = ok | hit A1 B1 C1 = over B,C | used A 0",
    "A 1/2s | B 1/2s | C 1/2s | hit A1 B1 C1 = ok | hit A1 B1 C1 = over A,B,C",
    // windows roll: every hit comes back one window after it was spent
    "A 10/2s | hit A10 = ok | wait 2 | hit A10 = ok | used A 10",
    "A 10/3s | hit A4 = ok | wait 2 | hit A6 = ok | hit A1 = over A | wait 2 | used A 6 | hit A4 = ok | hit A1 = over A",
    "A 2/3s | hit A1 = ok | wait 2 | hit A1 = ok | wait 2 | hit A1 = ok | hit A1 = over A",
    "A 5/1s | B 5/3s | hit A5 B5 = ok | wait 2 | used A 0 | used B 5 | hit A1 B1 = over B | used A 0",
    // names: once is enough, refused stays refused
    "A 10/2s | reserve x A6 = ok | reserve x A6 = ok | used A 6",
    "A 10/2s | B 10/2s | reserve x A6 B2 = ok | reserve x A6 B2 = ok | used A 6 | used B 2",
    "A 10/2s | reserve x A6 = ok | reserve x A7 = conflict | used A 6",
    "A 10/2s | B 10/2s | reserve x A6 = ok | reserve x B1 A6 = conflict | used A 6 | used B 0",
    "A 10/2s | reserve x A11 = over A | reserve x A1 = burnt | used A 0",
    "A 5/2s | reserve x A5 = ok | reserve y A1 = over A | wait 2 | reserve y A1 = burnt | reserve z A1 = ok",
    "A 5/2s | B 5/2s | reserve x A9 B1 = over A | reserve x B1 = ok | used B 1",
    "A 5/2s | B 5/2s | reserve w B5 = ok | reserve x A1 B1 = over B | reserve x A1 = ok | used A 1",
    // a reserve that is sent again is free only while all of it is held
    "A 10/1s | reserve x A6 = ok | wait 2 | reserve x A6 = expired | used A 0",
    "A 10/9s | reserve x A6 = ok | void x A = ok | reserve x A6 = voided | used A 0",
    "A 10/9s | B 10/9s | reserve x A6 = ok | reserve x A6 B3 = conflict | used A 6 | used B 0",
    "A 10/9s | B 10/9s | reserve x A6 B3 = ok | void x B = ok | reserve x A6 B3 = voided | used A 6 | used B 0",
    "A 10/9s | B 10/9s | reserve x A6 B3 = ok | reserve x A6 B3 = ok | used A 6 | used B 3",
    // void
    "A 10/2s | reserve x A6 = ok | void x A = ok | used A 0 | hit A10 = ok",
    "A 10/2s | reserve x A6 = ok | void x A = ok | void x A = ok | used A 0",
    "A 10/2s | reserve x A6 = ok | void x A = ok | reserve x A6 = voided | used A 0",
    "A 10/2s | void x A = unknown",
    "A 10/2s | reserve x A11 = over A | void x A = unknown",
    "A 10/1s | reserve x A6 = ok | wait 2 | void x A = expired",
    "A 10/2s | B 10/2s | reserve x A6 B3 = ok | void x A B = ok | used A 0 | used B 0",
    "A 10/2s | B 10/2s | reserve x A6 B3 = ok | void x B = ok | used A 6 | used B 0",
    "A 10/2s | B 10/2s | reserve x A6 = ok | void x A B = unknown | used A 6",
    // void and re-reserve in one chain: what the void gives back is there for what follows
    "A 10/2s | reserve x A10 = ok | settle x A8/2s = ok | used A 8",
    "A 10/2s | reserve x A10 = ok | settle x A0/2s = ok | used A 0",
    "A 10/2s | reserve x A10 = ok | settle x A11/2s = over A | used A 10",
    "A 10/2s | reserve x A10 = ok | settle x A8/2s = ok | settle x A8/2s = ok | used A 8",
    "A 10/1s | reserve x A10 = ok | wait 2 | settle x A8/1s = expired | used A 0",
    "A 10/3s | reserve x A10 = ok | settle x A4/1s = ok | used A 4 | wait 2 | used A 0",
    "A 10/2s | B 10/2s | reserve x A4 B4 = ok | settle x A2/2s B1/2s = ok | used A 2 | used B 1",
    // as much as there is, up to an amount
    "A 10/2s | take x A4 = took 4 | take y A9 = took 6 | take z A1 = took 0 | used A 10",
    "A 10/2s | take x A4 = took 4 | take x A4 = took 4 | used A 4",
    "A 10/2s | hit A7 = ok | take x A9 = took 3 | take x A9 = took 3 | used A 10",
    "A 10/2s | B 3/2s | take x A4 B4 = took 4+3 | used A 4 | used B 3",
    "A 10/1s | take x A4 = took 4 | wait 2 | used A 0 | untake x A = expired",
    "A 10/2s | take x A4 = took 4 | untake x A = ok | untake x A = ok | used A 0 | void x A = unknown",
    "A 10/2s | untake x A = unknown",
    "A 10/2s | take x A20 = took 10 | keep x A3/2s = ok | keep x A3/2s = ok | used A 3 | hit A7 = ok | hit A1 = over A",
    "A 10/2s | take x A8 = took 8 | keep x A3/2s = ok | unsettle x A = ok | unsettle x A = ok | used A 0",
    "A 10/2s | reserve x A8 = ok | settle x A3/2s = ok | unsettle x A = ok | used A 0",
    "A 10/1s | reserve x A8 = ok | settle x A3/1s = ok | wait 2 | unsettle x A = expired",
    "A 10/2s | reserve x A8 = ok | unsettle x A = unknown | used A 8",
    "A 10/2s | hit A8 = ok | A 5/2s | take x A3 = decreasing A | used A 8",
    "A 10/9s | hit A7 = ok | take x A5/1s = took 3 | used A 10 | wait 2 | used A 7",
    "A 10/9s | hit A10 = ok | take x A5 = took 0 | A 15/9s | take x A5 = took 0 | take y A9 = took 5 | used A 15",
    "A 10/9s | take x A18446744073709551615 = took 10 | used A 10",
    "A 0/2s | take x A5 = took 0 | used A 0",
    "A 10/9s | reserve x A4 = ok | more x A7/9s = over A | take x A7/9s = took 6 | void x A = ok | used A 6",
    // more than was reserved, and debt
    "A 10/2s | reserve x A4 = ok | more x A6/2s = ok | used A 10",
    "A 10/2s | reserve x A4 = ok | more x A6/2s = ok | more x A6/2s = ok | used A 10",
    "A 10/2s | reserve x A4 = ok | more x A7/2s = over A | debt x A7 = ok | used A 4 | owes A 7",
    "A 10/2s | debt x A7 = ok | debt x A7 = ok | owes A 7 | debt y A1 = ok | owes A 8 | used A 0",
    "A 10/2s | reserve x A4 = ok | more x A7/2s = over A | more x A1/2s = burnt",
    // capacity changes
    "A 5/2s | hit A5 = ok | A 8/2s | hit A3 = ok | hit A1 = over A | capacity A 8",
    "A 8/2s | hit A2 = ok | A 5/2s | hit A3 = ok | hit A1 = over A | capacity A 5",
    "A 8/2s | hit A7 = ok | A 5/2s | hit A1 = decreasing A | capacity A 8 | wait 3 | hit A5 = ok | capacity A 5",
    "A 8/2s | hit A7 = ok | A 5/2s | hit A1 = decreasing A | A 9/2s | hit A2 = ok | capacity A 9",
    "A 8/2s | B 9/2s | hit A7 = ok | A 5/2s | hit B1 A1 = decreasing A | used B 0",
    "A 8/9s | reserve x A7 = ok | A 5/9s | hit A1 = decreasing A | void x A = ok | wait 1 | hit A5 = ok | capacity A 5",
    // what a completion takes was used already: a decrease is no reason to refuse it
    "A 8/9s | reserve x A7 = ok | A 5/9s | hit A1 = decreasing A | settle x A6/9s = ok | used A 6 | capacity A 8",
    "A 8/9s | reserve x A5 = ok | reserve y A2 = ok | A 5/9s | hit A1 = decreasing A | more x A1/9s = ok | more y A1/9s = over A | used A 8",
    "A 8/9s | reserve x A7 = ok | A 9/9s | more x A2/9s = ok | used A 9 | capacity A 9",
    // deny, by hand: 10 in 4 s. 1 is reserved at 0; at 1 it turns out to have been 16, and 9 are left
    "A 10/4s | reserve x A1 = ok | wait 1 | more x A15/3s = over A | take x A15/3s = took 9 | used A 10 | hit A1 = over A | wait 3 | used A 0 | owes A 0 | hit A10 = ok",
    // debt: it is written down, and stops nobody
    "A 10/4s | reserve x A1 = ok | wait 1 | more x A15/3s = over A | debt x A15 = ok | used A 1 | owes A 15 | hit A9 = ok | wait 4 | used A 0 | owes A 15 | hit A10 = ok",
    // repay: 9 are paid at 1, 1 at 4 and 5 of the 9 that come back at 5
    "A 10/4s repay | reserve x A1 = ok | wait 1 | more x A15/3s = over A | debt x A15 = ok | paid | used A 10 | owes A 6 | hit A1 = debt A",
    "A 10/4s repay | reserve x A1 = ok | wait 1 | debt x A15 = ok | wait 3 | used A 10 | owes A 5 | hit A1 = debt A | wait 2 | owes A 0 | used A 6 | hit A4 = ok | hit A1 = over A | wait 3 | used A 4",
    // deny, two that overshoot within one window: x fills the limit at 3, 9 come back at 4, and y can do the same at 5
    "A 10/4s | hit A9 = ok | wait 3 | reserve x A1 = ok | more x A99/4s = over A | take x A99/4s = took 0 | hit A1 = over A | wait 2 | reserve y A1 = ok | more y A99/4s = over A | take y A99/4s = took 8 | used A 10 | hit A1 = over A",
    // repay, the same: the 9 that come back at 4 pay, so that y is not let in
    "A 10/4s repay | hit A9 = ok | wait 3 | reserve x A1 = ok | more x A20/4s = over A | debt x A20 = ok | owes A 20 | wait 2 | hit A1 = debt A | used A 10 | owes A 11",
    // a charge that comes afterwards takes what is left and owes the rest, both or neither, and once
    "A 10/9s | hit A7 = ok | charge x A5:2 = over A | charge y A3:4 = ok | used A 10 | owes A 4 | charge y A3:4 = ok | charge y A1:6 = conflict | charge z A0:5 = ok | used A 10 | owes A 9",
    // one that was refused stays refused, whatever is free when it is sent again
    "A 10/9s | hit A7 = ok | charge x A5:2 = over A | charge x A3:4 = burnt | charge x A0:7 = burnt | owes A 0 | used A 7",
    "A 10/9s repay | hit A7 = ok | charge x A3:4 = ok | hit A1 = debt A | used A 10 | owes A 4 | charge x A3:4 = ok | charge x A2:5 = conflict | owes A 4",
    "A 10/9s repay | charge x A7:0 = ok | used A 7 | owes A 0 | hit A3 = ok | charge x A7:0 = ok | used A 10",
    // what a completion took within its window is not owed when it is sent again after that, and what is owed is owed once
    "A 10/2s | reserve x A1 = ok | more x A3/2s = ok | wait 3 | charge x A0:3 = conflict | used A 0 | owes A 0",
    "A 10/1s | reserve x A1 = ok | wait 2 | charge x A0:15 = ok | charge x A0:15 = ok | more x A15 = conflict | used A 0 | owes A 15",
    // what fits is paid at once, and whatever comes back pays
    "A 10/9s repay | debt x A4 = ok | paid | owes A 0 | used A 4 | hit A6 = ok | hit A1 = over A",
    "A 10/9s repay | debt x A4 = ok | debt x A4 = ok | paid | owes A 0 | used A 4",
    "A 10/9s repay | reserve x A4 = ok | reserve y A6 = ok | debt z A5 = ok | owes A 5 | void x A = ok | paid | owes A 1 | used A 10 | void y A = ok | paid | owes A 0 | used A 5 | hit A5 = ok",
    "A 10/9s repay | reserve x A8 = ok | debt z A5 = ok | paid | owes A 3 | settle x A3/9s = ok | paid | owes A 0 | used A 8 | hit A2 = ok",
    "A 5/9s repay | hit A5 = ok | debt z A4 = ok | A 8/9s repay | hit A1 = debt A | paid | owes A 1 | used A 8 | capacity A 8",
    "A 8/9s repay | reserve x A8 = ok | debt z A9 = ok | A 5/9s repay | hit A1 = decreasing A | void x A = ok | wait 3 | used A 5 | owes A 4 | capacity A 5",
    // a limit that owes keeps others from nothing but itself, and takes nothing with it
    "A 10/9s repay | B 10/9s | debt x A14 = ok | hit B3 A1 = debt A | used B 0 | hit B3 = ok",
    // whether a debt is paid is what the limit says now
    "A 10/9s | debt x A14 = ok | hit A3 = ok | A 10/9s repay | hit A1 = debt A | paid | used A 10 | owes A 7 | A 10/9s | hit A1 = over A | owes A 7",
    // many windows
    "A 3/1s repay | debt x A7 = ok | paid | hit A1 = debt A | wait 5 | owes A 0 | used A 0 | hit A3 = ok",
];

#[tokio::test]
async fn memory() {
    for (index, row) in ROWS.iter().enumerate() {
        let mut bench = OnMemory { now_ms: 5_000, ..Default::default() };
        run(&mut bench, &format!("row{index}"), row).await;
    }
}
