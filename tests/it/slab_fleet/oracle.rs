//! Whether a limit was broken, judged from outside: from when requests were sent and when they were answered. It knows
//! nothing of slabs, of the ledger or of anybody's clock but its own.
//!
//! What can be proved from here. An admission takes place somewhere between the sending of its request and the arrival
//! of its answer; nobody outside can say where. So it lies in a window for certain only if it was sent not before the
//! window's start and answered before its end. If all of those together are more than the capacity, the limit was
//! broken, whenever each of them was admitted. The reverse doesn't hold: what is hidden in the round trips at both ends of a window
//! is not seen. That is some milliseconds of windows of seconds.

/// One request that was admitted. Times are microseconds of one clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    pub instance: usize,
    /// Read before the request was sent.
    pub sent_us: u64,
    /// Read after the answer was there.
    pub answered_us: u64,
    pub units: u64,
}

/// A time in which an instance stood still: from when all of its threads were seen to be stopped, to just before they
/// were told to go on.
#[derive(Debug, Clone, Copy)]
pub struct Pause {
    pub instance: usize,
    pub from_us: u64,
    pub to_us: u64,
}

/// The most units that lie in any one window for certain.
///
/// Only windows that start when a request was sent need to be looked at: any other one can be moved to its first request and
/// loses none.
pub fn most_in_a_window(admissions: &[Admission], pauses: &[Pause], window_us: u64) -> u64 {
    let mut known: Vec<Admission> = admissions.iter().map(|admission| narrowed(*admission, pauses)).collect();
    known.sort_by_key(|admission| admission.sent_us);
    let inside = |first: usize| {
        let end_us = known[first].sent_us + window_us;
        let sent_inside = known[first..].iter().take_while(|other| other.sent_us < end_us);
        sent_inside.filter(|other| other.answered_us < end_us).map(|other| other.units).sum()
    };
    (0..known.len()).map(inside).max().unwrap_or(0)
}

/// An instance that stands still decides nothing: what was sent to it meanwhile can only be admitted afterwards.
fn narrowed(mut admission: Admission, pauses: &[Pause]) -> Admission {
    for pause in pauses.iter().filter(|pause| pause.instance == admission.instance) {
        if admission.answered_us > pause.to_us && (pause.from_us..pause.to_us).contains(&admission.sent_us) {
            admission.sent_us = pause.to_us;
        }
    }
    admission
}

/// Units answered from `from_us` on and before `to_us`.
pub fn answered_between(admissions: &[Admission], from_us: u64, to_us: u64) -> u64 {
    let answered = admissions.iter().filter(|it| (from_us..to_us).contains(&it.answered_us));
    answered.map(|admission| admission.units).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(instance: usize, sent_us: u64, answered_us: u64, units: u64) -> Admission {
        Admission { instance, sent_us, answered_us, units }
    }

    /// Each row: admissions as (sent, answered, units), and the most that a window of 100 must hold.
    #[test]
    fn only_what_is_certain_counts() {
        let rows: [(&[(u64, u64, u64)], u64); 7] = [
            (&[], 0),
            (&[(0, 1, 1), (50, 60, 2), (98, 99, 3)], 6),
            (&[(0, 1, 1), (99, 100, 1)], 1),
            (&[(0, 500, 9), (10, 11, 1)], 1),
            (&[(300, 310, 1), (0, 1, 1), (250, 260, 1)], 2),
            (&[(0, 10, 1), (5, 6, 1), (104, 104, 1)], 2),
            (&[(0, 10, 1), (5, 6, 1), (103, 104, 1)], 2),
        ];
        for (row, expected) in rows {
            let admissions: Vec<Admission> =
                row.iter().map(|(sent, answered, units)| admission(0, *sent, *answered, *units)).collect();
            assert_eq!(most_in_a_window(&admissions, &[], 100), expected, "{row:?}");
        }
    }

    #[test]
    fn what_was_sent_to_a_stopped_instance_was_admitted_after_it() {
        let admissions = [admission(1, 10, 510, 1), admission(2, 10, 510, 1), admission(0, 520, 530, 1)];
        assert_eq!(most_in_a_window(&admissions, &[], 100), 1);
        let pause = Pause { instance: 1, from_us: 5, to_us: 500 };
        assert_eq!(most_in_a_window(&admissions, &[pause], 100), 2);
        let later = Pause { from_us: 11, ..pause };
        assert_eq!(most_in_a_window(&admissions, &[later], 100), 1, "it was sent before that");
    }
}
