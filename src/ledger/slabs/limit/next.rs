//! When the next slab is asked for, how large it is, and who waits for it.

use super::{Ask, Asking, Full, Limit, OPEN_AT_HUB_MAX, OPEN_MAX, Outside, Todo, Took, WAITS_MAX};
use crate::ledger::Lender;
use crate::ledger::slabs::slab::Slab;
use crate::ledger::slabs::times::Times;

/// A slab is never more than this part of the capacity.
const SLABS_PER_CAPACITY: u64 = 20;

/// Below this a slab saves nothing, and the limit stays exact to the unit.
const UNITS_MIN: u64 = 2;

/// A ledger that needs longer than a life for a slab is asked for none during this many lives.
const TOO_SLOW_LIVES: u64 = 20;

impl Limit {
    /// The next slab, if it is time to ask for it: when what is left won't last until the answer.
    pub(super) fn next_ask(&mut self, now_ms: u64, outside: &mut impl Outside) -> Option<Ask> {
        let open_max = if self.loans.is_some() { OPEN_AT_HUB_MAX } else { OPEN_MAX };
        if self.asking.is_some() || self.is_full(now_ms) || now_ms < self.no_slab_until_ms {
            return None;
        }
        if self.open.len() >= open_max || !self.pays_to_lend(now_ms) {
            return None;
        }
        let amount = self.size(now_ms)?;
        let life_ms = self.slab_ms;
        // Twice what an ask takes, because it may take longer than the last ones.
        let lead_ms = (self.ask_takes_ms * 2 + 1).min(life_ms / 2);
        let lasts = |slab: &&Slab| slab.ends_at_ms > now_ms + lead_ms;
        let left: u64 = self.open.iter().filter(lasts).map(|slab| slab.left).sum();
        if u128::from(left) * u128::from(life_ms) > u128::from(amount) * u128::from(lead_ms) {
            return None;
        }
        let up_to = now_ms < self.one_at_a_time_until_ms;
        Some(self.ask(amount, up_to, now_ms, outside))
    }

    /// Whether the ledger had not even one unit a moment ago.
    pub(super) fn is_full(&self, now_ms: u64) -> bool {
        now_ms < self.full.until_ms && self.full.from_units <= 1
    }

    /// What was admitted here during the last life and a quarter more, but no more than a twentieth of the capacity. For a slab that
    /// is handed out for a part of a life only, as much less. `None` if that is too little for a slab.
    fn size(&mut self, now_ms: u64) -> Option<u64> {
        let and_a_quarter = |units: u64| units.saturating_add(units / 4);
        let admitted = self.demand.during_last_life(now_ms);
        let most = self.rules.capacity / SLABS_PER_CAPACITY;
        if and_a_quarter(admitted).min(most) < UNITS_MIN {
            return None;
        }
        let part = u128::from(admitted) * u128::from(self.slab_ms) / u128::from(self.rules.times.demand_ms);
        let part = u64::try_from(part).unwrap_or(u64::MAX);
        Some(and_a_quarter(part).clamp(UNITS_MIN, most))
    }

    /// `now_ms` was read before the ledger is asked: it is T.
    fn ask(&mut self, amount: u64, up_to: bool, now_ms: u64, outside: &mut impl Outside) -> Ask {
        self.count_requests(1, now_ms);
        let name = outside.fresh_name();
        let times = self.rules.times;
        self.asking = Some(Asking {
            name: name.clone(),
            amount,
            asked_at_ms: now_ms,
            times,
            up_to,
            promised: 0,
            is_stale: false,
        });
        let capacity = self.rules.capacity;
        let (timeout_seconds, window_ms) = (times.timeout_seconds, times.window_ms);
        Ask { name, amount, capacity, timeout_seconds, window_ms, up_to }
    }

    /// Whether a request that needs `rest` units from the ledger waits for an answer that others have asked for. Near the
    /// limit everybody does, so that a limit which is asked for all the time costs one ask at a time.
    pub(super) fn should_wait(&mut self, rest: u64, waits: u32, now_ms: u64) -> bool {
        let one_at_a_time = now_ms < self.one_at_a_time_until_ms && waits < WAITS_MAX;
        if let Some(asking) = &mut self.asking {
            let comes = asking.promised.saturating_add(rest) <= asking.amount;
            if (waits == 0 && comes) || (one_at_a_time && (waits == 0 || rest <= asking.amount)) {
                asking.promised = asking.promised.saturating_add(rest);
                return true;
            }
        }
        one_at_a_time && self.asking_alone > 0
    }

    /// The ask under way was answered.
    pub fn took(&mut self, took: Took, outside: &mut impl Outside) -> Todo {
        let now_ms = outside.now_ms();
        let mut todo = Todo { wake: true, ..Todo::default() };
        let Some(asking) = self.asking.take() else { return todo };
        match took {
            Took::Units(units) => {
                // Less than was asked for means that nothing is left after it.
                if units < asking.amount {
                    self.set_full(1, now_ms);
                } else {
                    self.full = Full::default();
                }
                let life_ms = asking.times.life_ms;
                self.open_slab(asking, units, (None, life_ms), now_ms, &mut todo);
            }
            Took::Lent(loan) => {
                self.full = Full::default();
                let life_ms = loan.for_ms.min(asking.times.life_ms);
                self.open_slab(asking, loan.units, (Some(loan.lender), life_ms), now_ms, &mut todo);
            }
            Took::Full { for_ms } => {
                let Times { full_ms, pause_ms_max, .. } = self.rules.times;
                self.set_full_for(1, for_ms.min(full_ms.max(pause_ms_max)), now_ms);
            }
            Took::Refused => {
                self.set_full(asking.amount, now_ms);
                // So much does not fit; what does fit is taken.
                if !asking.is_stale && !asking.up_to {
                    todo.ask = Some(self.ask(asking.amount, true, now_ms, outside));
                }
            }
            Took::Nothing => self.no_slab_until_ms = now_ms + asking.times.life_ms,
        }
        todo
    }

    fn open_slab(
        &mut self,
        asking: Asking,
        units: u64,
        (lender, life_ms): (Option<Lender>, u64),
        now_ms: u64,
        todo: &mut Todo,
    ) {
        let took_ms = now_ms.saturating_sub(asking.asked_at_ms).min(asking.times.life_ms);
        self.ask_takes_ms = (self.ask_takes_ms * 3 + took_ms).div_ceil(4);
        if units == 0 {
            return;
        }
        self.slab_ms = life_ms;
        let ends_at_ms = asking.asked_at_ms + life_ms;
        let slab = Slab {
            serial: self.next_serial,
            name: asking.name,
            times: asking.times,
            up_to: asking.up_to,
            lender,
            taken: units,
            left: units,
            aside: 0,
            ends_at_ms: if asking.is_stale { now_ms } else { ends_at_ms },
            is_closed: asking.is_stale,
            last_ms: asking.asked_at_ms,
        };
        if !asking.is_stale && slab.is_over(now_ms) {
            self.no_slab_until_ms = now_ms + asking.times.life_ms * TOO_SLOW_LIVES;
        }
        self.next_serial += 1;
        self.counts.taken = self.counts.taken.wrapping_add(units);
        todo.tick_at_ms = Some(slab.ends_at_ms);
        self.open.push(slab);
        self.end_slabs(now_ms, todo);
    }
}
