//! Slabs: blocks of a limit's capacity that this instance has reserved in the shared ledger and hands out itself.
//!
//! * [`core`] is the whole of one instance: a request in, what it gets and what must be asked of the ledger out. It does
//!   no I/O. [`limit`] is one limit of it, [`slab`] one slab, [`returns`] what is given back, [`requests`] the ids that
//!   were seen, [`times`], [`demand`] and [`pace`] the arithmetic.
//! * [`Slabs`] is the layer that the server runs: the core with a clock, tasks and a ledger below. [`Lending`] is the same for a hub.
//! * `tests/it/slab_simulation.rs` drives the same core through faults on virtual time.
//!
//! # Why no window sees more than the capacity
//!
//! W is the window, L the life of a slab, and T our clock, read under the limit's lock before the ledger is asked. Our clock
//! never goes back and does not stand still while the machine sleeps; what the wall clock shows is never looked at. Clocks
//! of different machines are never compared: only that they run at the same speed is used, and only over one reservation.
//!
//! **What must hold.** A unit that is admitted at time c is held by the ledger, as pending, all the time from c to c + W.
//! Then for any window take its last admission, at time e: everything admitted in that window was admitted after e - W and
//! not after e, so at e the ledger holds all of it at once. The ledger never holds more than the capacity.
//!
//! **When a unit is admitted.** At the reading of the clock that follows its being set aside, [`limit::Limit::request`].
//! That is after the request came and before its answer leaves. If the ledger has to be asked for other parts of the same
//! request, it still is that moment, and those parts are admitted when the ledger takes them.
//!
//! **Held from c.** Units are set aside only of a slab whose take was answered; the ledger took it before it answered.
//!
//! **Held until c + W.** Four things can end what the ledger holds:
//!
//! 1. *The timeout of the take*, W + 2 s after the ledger applied it, which was at some A after T. Units are set aside only
//!    while the clock, read afterwards, shows less than T + L, and L is at most 1 s. So c + W < T + L + W < A + W + 2 s.
//!    The ledger's timeouts come late, never early: they are whole seconds from its own reading of the time at A. At least
//!    1 s is left over for clocks that don't agree on how long W is.
//! 2. *The void of a slab of which nothing was spent.* Nothing was admitted from it. It is sent when the slab has ended:
//!    nothing is aside, and nothing can be set aside, because a slab that has ended is out of the table, and all of this
//!    happens under the limit's lock.
//! 3. *The chain that keeps the spent part.* It is sent when the slab has ended, so what is spent is final. Void and reserve
//!    happen both or not at all; the reserve takes less than the void gives back, so it fits. Its timeout is counted by the
//!    ledger from some time after it was sent, and was made, when it was sent, to reach from there to one window
//!    after the last hand-out, rounded up, and 2 s more. If it is sent again, the same holds for the new timeout; whichever of the sendings is
//!    applied first, the others find its name and change nothing.
//! 4. *The void of what was spent*, whole or kept. It is sent when the clock shows at least the last hand-out + W + 1 ms;
//!    the last millisecond is there because the clock shows whole ones.
//!
//! # What a hub lends
//!
//! Many sidecars that take slabs of one limit through a hub get parts of slabs that the hub has taken: loans ([`Lending`]). The hub
//! hands out nothing of those slabs; a sidecar hands out a loan as if it were a slab of its own that lives for l, half of L. What must hold
//! is the same, where c is a hand-out at a sidecar and T the hub's clock before it asked for the slab.
//!
//! **Held from c.** The hub lends only of slabs whose take was answered.
//!
//! **Held until c + W.** The sidecar reads its clock before it asks for the loan, and hands out nothing of it l after that. The hub
//! reads its own clock, at H, when the ask has come. So c < H + l. Of the four things that can end what the ledger holds:
//!
//! 1. *The timeout of the take.* A slab is lent from for a quarter of L, so H < T + L / 4, and c + W < T + L / 4 + L / 2 + W. L is at most
//!    1 s, so that is at least 1.25 s before the timeout.
//! 2. and 3. *The void, and the chain that keeps the spent part.* What is lent is aside, so a slab has ended only when every loan
//!    of it is over: its sidecar has told how much it has spent, or was taken to have spent all. A sidecar tells when its slab has ended,
//!    so what it says is final.
//! 4. *The void of what was spent*, one window after the last hand-out that the hub knows of. For a loan of which nothing was told,
//!    that is when it was found to be overdue, or H + l if that is later. A sidecar that tells says how long ago its last hand-out was, by its own clock, when it sends that. The message takes
//!    a while, so on the hub's clock the hand-out was at least as long ago when it comes; two milliseconds are added because both
//!    clocks show whole ones.
//!
//! Everything is back within L of T, as if the sidecar had taken the slab: L / 4 to lend, L / 2 to hand out, L / 4 to tell.
//! A hub may not borrow from another hub what it lends: that one would take it for spent too early.
//!
//! What can go wrong with loans, beside what can with slabs: *an ask or an answer that is late* makes the loan shorter, because the sidecar
//! counts from before it asked. *An answer that is lost* leaves a loan that nobody knows of; it is overdue in the end, and counts as
//! spent. So does a loan whose end is told in *a message that is lost*. *An ask that is sent again* because its stream was lost goes to the ledger, which alone
//! knows what became of the first sending; if that was lent something, it is a loan that nobody knows of. *A hub
//! that crashes* gives nothing back; the ledger's timeout does, after the last loan has ended. Another hub, or the next process, knows none of its loans and ignores what
//! it hears of them.
//!
//! # What can go wrong
//!
//! * **A crash.** Nothing is admitted any more, so nothing needs to be held; the ledger's timeouts give everything back.
//!   The next process starts with no slabs and new names.
//! * **A pause**, of any length, anywhere: a stopped process, a sleeping machine, a thread that does not get its turn. Before
//!   the clock is read for a hand-out: it shows the time after the pause, and a slab that is over gives nothing. After
//!   it: the unit was admitted before the pause. Between a decision to ask or to give back and its sending: the ledger's
//!   timeouts start later, and voids come later. Both is late, not early.
//! * **An answer that comes after its caller's deadline.** What was set aside is put back when the caller leaves, under the
//!   lock, and the ledger's part is voided by the layer below. Either the request was decided before, and then its units
//!   are spent whether or not anybody hears of it, or it never is.
//! * **A slow ledger.** T was read before the ask, so a slow answer makes the slab shorter. One that comes after T + L
//!   gives nothing and is voided; for some time no slab is asked for.
//! * **A take without an answer.** Nothing is ever handed out of it, so whatever becomes of it can only be too little.
//!   The layer below gives it back, because only that layer learns whether and when it lands: the worker that sent it
//!   waits for the result as long as it takes, and voids it if its caller has left. Nobody else may void it: a void that
//!   comes before the reserve fails, and a name that has failed can't be used again. So the worker's own void, which has the same
//!   name, would fail when the reserve lands. If the worker itself is lost, the ledger's timeout is left.
//! * **A give-back without an answer.** It is sent again under the same names until it is answered. A void that happened
//!   is found to exist; one of a reservation that has timed out is answered so, and ends the matter.
//! * **Put back too late.** A request that sets units aside and then waits for the ledger keeps the slab from ending. When
//!   it is refused the units are put back into the slab, which gives nothing once it is over; they go back with the rest.
//! * **Clocks that can't be trusted.** Two things break what is assumed, for exact limits as much as for these, and nothing
//!   here can notice them. A host may stop a virtual machine and resume it without telling its clock: then T + L comes
//!   later than it should, and what is left of the slabs, a twentieth of the capacity each, is handed out although the
//!   ledger's timeout has given it back. The second that is left over covers short stops (for what was lent, 0.3 to 0.5 s), not a machine that is resumed from a
//!   snapshot. And TigerBeetle's time is the wall clock that its replicas agree on: if that is set forward, every
//!   reservation ends earlier by as much.
//! * **A capacity that is lowered.** The ledger lowers it only when that much is free, and refuses takes until then. Slabs
//!   are not needed for this to be safe; they go back at once so that it does not take longer.

pub mod core;
pub mod demand;
mod layer;
pub mod limit;
pub mod pace;
pub mod requests;
pub mod returns;
pub mod slab;
pub mod times;

pub use self::layer::{Lending, Lent, Slabs};
