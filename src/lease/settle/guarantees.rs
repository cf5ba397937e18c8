//! What each overage rule guarantees: by hand, and for random loads on virtual time, with the memory ledger below.
//!
//! What a request used counts from when it was let in, and windows are half-open. Of a request there are:
//!
//! * what it overshot: what it used beyond its estimate
//! * what was let go (`deny`) or written down as a debt (`debt`, `repay`): all of that if it no longer fitted, else nothing
//!
//! Take the last request that was let in within a window. At that moment the ledger holds no more than the capacity. It
//! holds what every request of the window used that was over by then, except for what was let go or is owed, and the
//! estimates of those under way. So the window has at most the capacity, what those under way overshot, and what was let
//! go or written down. With `repay` the last one was let in only because nothing was owed: all that was written down within
//! the window has been paid within the window, and is held too. So there only those under way count, and if requests come
//! one after the other that is one request: the last.
//!
//! With several instances on one ledger, `deny` and `debt` are the same: the ledger decides. With `repay` an instance may not know
//! for a second what another one has written down, and what it lets in until then counts like those under way.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::ledger::Verdict;
use crate::ledger::memory::Core;
use crate::limit::{Kind, LimitKey};

const START_MS: u64 = 1_000_000;

/// A request as it is going to be.
#[derive(Debug, Clone, Copy)]
struct Call {
    starts_ms: u64,
    estimate: u64,
    used: u64,
    takes_ms: u64,
}

/// One that was let in.
#[derive(Debug)]
struct Admitted {
    call: Call,
    lease: Lease,
    /// Which event that was, and which its end.
    came: usize,
    ended: usize,
    let_go: u64,
    written_down: u64,
}

impl Admitted {
    fn overshot(&self) -> u64 {
        self.call.used.saturating_sub(self.call.estimate)
    }
}

/// A limit that everybody uses.
struct World {
    core: Core,
    account: Arc<Account>,
    overage: Overage,
    capacity: u64,
    window_seconds: NonZeroU32,
    now_ms: u64,
    admitted: Vec<Admitted>,
    events: usize,
    used: u64,
}

impl World {
    fn new(overage: Overage, capacity: u64, window_seconds: u32) -> Self {
        Self {
            core: Core::default(),
            account: Arc::new(Account::new(LimitKey::new("limit"))),
            overage,
            capacity,
            window_seconds: NonZeroU32::new(window_seconds).unwrap(),
            now_ms: START_MS,
            admitted: Vec::new(),
            events: 0,
            used: 0,
        }
    }

    fn window_ms(&self) -> u64 {
        u64::from(self.window_seconds.get()) * 1000
    }

    /// What the limit holds and what it owes now.
    fn balance(&mut self) -> (u64, u64) {
        let balance = self.core.balance(&self.account, self.capacity, self.now_ms);
        (balance.used, balance.debt)
    }

    /// Runs requests, each to its end. `look` is called after everything that happens.
    fn run(&mut self, calls: &[Call], mut look: impl FnMut(&mut Self)) {
        let start = |(n, call): (usize, &Call)| ((START_MS + call.starts_ms, n), (*call, None));
        let mut agenda: BTreeMap<_, _> = calls.iter().enumerate().map(start).collect();
        while let Some(((at_ms, n), (call, admitted))) = agenda.pop_first() {
            (self.now_ms, self.events) = (at_ms, self.events + 1);
            match admitted {
                Some(admitted) => self.end(admitted),
                None if self.ask(call) => {
                    // Those that end at this moment end before others begin.
                    let place = (at_ms + call.takes_ms, if call.takes_ms == 0 { 0 } else { n });
                    agenda.insert(place, (call, Some(self.admitted.len() - 1)));
                }
                None => {}
            }
            look(self);
        }
    }

    /// Whether a request is let in.
    fn ask(&mut self, call: Call) -> bool {
        let kind = Kind::Rolling { window_seconds: self.window_seconds };
        let key = self.account.key.clone();
        let (overage, amount) = (self.overage, call.estimate);
        let held = Held { key, amount, kind, overage, costs_hits: true, is_named: true };
        let id = LeaseId::fresh(self.now_ms, self.events as u128);
        let reserve = Action::Reserve(hold(amount, self.window_seconds, self.capacity, overage));
        let transfers = smallvec![Transfer { account: Arc::clone(&self.account), action: reserve }];
        let chain = Chain { lease: id.clone(), keep: Keep::ForCompletion, transfers };
        let (_, owed) = self.balance();
        let is_in = self.core.apply(&chain, self.now_ms).unwrap().verdict == Verdict::Done;
        assert!(!is_in || owed == 0 || overage == Overage::Debt, "let in while {owed} are owed");
        if is_in {
            let lease = Lease { id, reserved_at_unix_ms: self.now_ms, held: vec![held] };
            let (came, ended) = (self.events, usize::MAX);
            self.admitted.push(Admitted { call, lease, came, ended, let_go: 0, written_down: 0 });
        }
        is_in
    }

    /// As `apply` does it.
    fn end(&mut self, admitted: usize) {
        let (capacity, one) = (Some(self.capacity), &mut self.admitted[admitted]);
        let (id, held) = (&one.lease.id, &one.lease.held[0]);
        one.ended = self.events;
        self.used += one.call.used;
        let settlement = settle(&one.lease, &[Some(one.call.used)], self.now_ms).pop();
        let mut chain = settlement.and_then(|it| it.adjustment.chain(held, id, &self.account, capacity));
        one.let_go = if chain.is_some() { 0 } else { one.call.used.saturating_sub(one.call.estimate) };
        while let Some(asked) = chain.take() {
            let outcome = self.core.apply(&asked, self.now_ms).unwrap();
            for transfer in asked.transfers.iter().filter(|_| outcome.verdict == Verdict::Done) {
                match transfer.action {
                    Action::TakeUpTo(hold) => one.let_go = hold.amount - outcome.taken[0],
                    Action::Debt(hold) => one.written_down = hold.amount,
                    _ => {}
                }
            }
            if let Verdict::Refused(refusal) = outcome.verdict {
                let adjustment = settlement.unwrap().adjustment;
                chain = adjustment.after_refusal(refusal, held, id, &self.account, capacity);
            }
        }
    }

    /// Checks the first paragraph of this file for every window that begins and ends with a request.
    fn audit_windows(&self) {
        for (last, end) in self.admitted.iter().enumerate() {
            let (mut used, mut beyond) = (0, 0);
            for one in self.admitted[..=last].iter().rev() {
                if one.call.starts_ms + self.window_ms() <= end.call.starts_ms {
                    break;
                }
                used += one.call.used;
                beyond += match self.overage {
                    _ if one.ended > end.came => one.overshot(),
                    Overage::Deny => one.let_go,
                    Overage::Debt => one.written_down,
                    Overage::Repay => 0,
                };
                assert!(
                    used <= self.capacity + beyond,
                    "{used} used, {beyond} of that beyond: {one:?} to {end:?}"
                );
            }
        }
    }

    fn admitted_at(&self) -> Vec<u64> {
        self.admitted.iter().map(|one| one.call.starts_ms).collect()
    }
}

/// `50s 1:100 59s`: at 50 s one comes that is estimated at 1, uses 100 and takes 59 s; without the last it takes no time.
fn calls(text: &str) -> Vec<Call> {
    let number = |text: &str| text.parse::<u64>().unwrap();
    let ms = |text: &str| match text.strip_suffix("ms") {
        Some(ms) => number(ms),
        None => number(text.strip_suffix('s').unwrap()) * 1000,
    };
    let call = |text: &str| {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (estimate, used) = words[1].split_once(':').unwrap();
        let takes_ms = words.get(2).map_or(0, |word| ms(word));
        Call { starts_ms: ms(words[0]), estimate: number(estimate), used: number(used), takes_ms }
    };
    text.split('|').map(call).collect()
}

/// 10 in a minute. 9 are used at 0 s. At 50 s one uses 100 instead of 1, and the limit is full until 60 s. Then 9 come back,
/// and with `deny` the next one can do the same: of the 200 in the minute from 50 s, one request overshot only 99.
const TWO_THAT_OVERSHOOT: &str =
    "0s 9:9 | 50s 1:100 | 59999ms 1:100 | 60s 1:100 | 61s 1:1 | 649999ms 1:1 | 650s 1:1";

#[test]
fn with_deny_several_can_overshoot_within_a_window() {
    let mut world = World::new(Overage::Deny, 10, 60);
    world.run(&calls(TWO_THAT_OVERSHOOT), |_| {});
    assert_eq!(world.admitted_at(), [0, 50_000, 60_000, 649_999, 650_000]);
    let let_go: Vec<u64> = world.admitted.iter().map(|one| one.let_go).collect();
    // At 50 s nothing is left, and at 60 s 8 are.
    assert_eq!(let_go, [0, 99, 91, 0, 0]);
    assert_eq!(200 - 99 - 91, world.capacity, "not one less would do");
    world.audit_windows();
}

/// The same with `repay`. 99 are owed at 50 s. 9 of them are paid at 60 s, and from then on 10 in every minute: 1 at ten
/// seconds before it and 9 at the full one. The last 9 are paid at 600 s, and the 1 of 590 s is free at 650 s.
#[test]
fn with_repay_only_one_can() {
    let mut world = World::new(Overage::Repay, 10, 60);
    let mut owed = Vec::new();
    world.run(&calls(TWO_THAT_OVERSHOOT), |world| owed.push(world.balance().1));
    // The first two are asked and end; those that are refused only ask.
    assert_eq!(owed, [0, 0, 0, 99, 99, 90, 90, 0, 0, 0]);
    assert_eq!(world.admitted_at(), [0, 50_000, 650_000]);
    world.audit_windows();
}

/// With `debt` the bill is right, and nobody is stopped.
#[test]
fn with_debt_it_is_written_down() {
    let mut world = World::new(Overage::Debt, 10, 60);
    world.run(&calls(TWO_THAT_OVERSHOOT), |_| {});
    assert_eq!(world.admitted_at(), [0, 50_000, 60_000, 61_000, 649_999, 650_000]);
    assert_eq!(world.balance(), (2, 99 + 99));
    world.audit_windows();
}

/// Two are under way at the same time: both overshoot before anybody can know.
#[test]
fn with_repay_those_under_way_can_overshoot_together() {
    let mut world = World::new(Overage::Repay, 10, 60);
    world.run(&calls("0s 1:100 1s | 0s 1:100 1s | 2s 1:1"), |_| {});
    assert_eq!(world.admitted_at(), [0, 0]);
    // 8 were free.
    assert_eq!(world.balance(), (10, 99 + 99 - 8));
    world.audit_windows();
}

/// What fits is taken for the rest of the window only. Five streams of 59 s begin one second apart. Each is estimated at 1 and
/// takes 5 more for its last second. By then the one before it has come back, so that all of them fit: 30 in every
/// minute of a limit of 10, and nothing is ever owed. Estimates that are too low for long streams are not made good.
#[test]
fn what_long_streams_use_beyond_their_estimates_counts_for_the_rest_of_the_window() {
    let round = |minute: u64| (0..5).map(move |n| format!("{}s 1:6 59s", minute * 60 + n));
    let text = (0..3).flat_map(round).collect::<Vec<_>>().join(" | ");
    let mut world = World::new(Overage::Repay, 10, 60);
    world.run(&calls(&text), |world| assert_eq!(world.balance().1, 0));
    assert_eq!((world.admitted.len(), world.used), (15, 90));
    world.audit_windows();
}

/// A stream of 90 s on a limit of 10 in a minute, estimated at 1: it used 31. What was reserved came back at 60 s.
#[test]
fn what_a_stream_used_that_outlives_its_window() {
    let text = "0s 1:31 90s | 91s 1:1 | 209999ms 1:1 | 269999ms 1:1 | 270s 1:1";
    for (overage, let_in, balance) in [
        // Nothing is left of the window to take anything for.
        (Overage::Deny, &[0, 91_000, 209_999, 269_999, 270_000][..], (2, 0)),
        // The bill has it.
        (Overage::Debt, &[0, 91_000, 209_999, 269_999, 270_000], (2, 30)),
        // 10 are paid at 90 s, at 150 s and at 210 s; the last are free at 270 s.
        (Overage::Repay, &[0, 270_000], (1, 0)),
    ] {
        let mut world = World::new(overage, 10, 60);
        world.run(&calls(text), |_| {});
        assert_eq!(world.admitted_at(), let_in, "{overage:?}");
        assert_eq!(world.balance(), balance, "{overage:?}");
        world.audit_windows();
    }
}

const CAPACITY: u64 = 20;
const WINDOW_SECONDS: u32 = 5;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..Default::default() })]

    #[test]
    fn random_loads(
        overage in prop::sample::select(vec![Overage::Deny, Overage::Debt, Overage::Repay]),
        // How long requests take at most; some outlive their window.
        longest in prop::sample::select(vec![0, 90, 300, 700u64]),
        one_by_one in any::<bool>(),
        load in prop::collection::vec((0..100u64, 1..=CAPACITY, 0..60u64, any::<u64>()), 1..200),
    ) {
        let (mut now_ms, mut calls) = (0, Vec::new());
        for (pause, estimate, used, time) in load {
            let takes_ms = if longest == 0 { 0 } else { time % longest * 10 };
            now_ms += pause * 10;
            calls.push(Call { starts_ms: now_ms, estimate, used, takes_ms });
            now_ms += if one_by_one { takes_ms + 10 } else { 0 };
        }
        let mut world = World::new(overage, CAPACITY, WINDOW_SECONDS);
        // What fits beyond an estimate is held for the rest of the window, in whole seconds that are rounded up.
        let within = calls.iter().map(|call| call.takes_ms).filter(|ms| *ms < u64::from(WINDOW_SECONDS) * 1000);
        let held_ms = u64::from(WINDOW_SECONDS) * 1000 - within.max().unwrap_or(0) / 1000 * 1000;
        world.run(&calls, |world| {
            let (used, owed) = world.balance();
            assert!(used <= CAPACITY, "{used} are held");
            if overage == Overage::Repay {
                assert!(owed == 0 || used == CAPACITY, "{} are free while {owed} are owed", CAPACITY - used);
                // Every unit that is not owed was held for so long, from the start until a window from now.
                let area = CAPACITY * (world.now_ms - START_MS + world.window_ms());
                assert!((world.used - owed) * held_ms <= area, "{} used, {owed} owed", world.used);
            }
        });
        world.audit_windows();
        if one_by_one {
            let under_way = |last: &Admitted| world.admitted.iter().filter(|one| one.came <= last.came && one.ended > last.came).count();
            prop_assert!(world.admitted.iter().all(|last| under_way(last) == 1), "one request, and no other");
        }
    }
}
