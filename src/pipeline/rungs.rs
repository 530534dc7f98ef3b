//! The batch sizes that a model runs at, and which of them its golden images run at next.
//!
//! A device fills a batch up to a power of two and has its own kernels for each, so sizes count by that rung; of a rung
//! the largest size seen stands for all. Pure.

use std::collections::BTreeMap;

/// Golden images that one check runs in batches of the sizes in use: more would hold up the batches that wait.
const IMAGES_A_CHECK: usize = 64;

/// The rungs in use, by the power of two that their sizes are filled up to.
#[derive(Clone, Debug, Default)]
pub(super) struct Rungs(BTreeMap<usize, Rung>);

#[derive(Clone, Debug)]
struct Rung {
    /// Largest batch seen, in images.
    largest: usize,
    /// Number of the check that ran it last; 0 before the first.
    checked: u64,
    /// The next check runs it, whatever else it runs.
    owed: bool,
}

impl Rungs {
    /// A batch of so many images was run.
    pub(super) fn ran(&mut self, images: usize) {
        let rung =
            self.0.entry(images.next_power_of_two()).or_insert(Rung { largest: images, checked: 0, owed: false });
        rung.largest = rung.largest.max(images);
    }

    /// A batch of so many images was run, and its answers wait for the next check.
    pub(super) fn owes(&mut self, images: usize) {
        self.ran(images);
        if let Some(rung) = self.0.get_mut(&images.next_power_of_two()) {
            rung.owed = true;
        }
    }

    /// Batch sizes for the next check: those that are owed, then those that were not checked for longest, within the
    /// images that a check may run; always one of those in use.
    pub(super) fn next(&mut self) -> Vec<usize> {
        let number = 1 + self.0.values().map(|rung| rung.checked).max().unwrap_or(0);
        let mut rungs: Vec<&mut Rung> = self.0.values_mut().collect();
        rungs.sort_by_key(|rung| (!rung.owed, rung.checked, std::cmp::Reverse(rung.largest)));
        let (mut sizes, mut images) = (Vec::new(), 0);
        for rung in rungs {
            if rung.owed || sizes.is_empty() || images + rung.largest <= IMAGES_A_CHECK {
                rung.checked = number;
                rung.owed = false;
                images += rung.largest;
                sizes.push(rung.largest);
            }
        }
        sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_ladders_are_checked_whole() {
        let mut rungs = Rungs::default();
        assert_eq!(rungs.next(), [0; 0], "nothing ran yet");
        for size in [1, 2, 3, 5, 6, 6] {
            rungs.ran(size);
        }
        assert_eq!(rungs.next(), [6, 3, 2, 1], "6 stands for 5, which runs in the same shape");
    }

    #[test]
    fn of_a_large_ladder_every_rung_has_its_turn() {
        let mut rungs = Rungs::default();
        (0..8).for_each(|power| rungs.ran(1 << power));
        let checks: Vec<_> = (0..3).map(|_| rungs.next()).collect();
        assert_eq!(checks, [vec![128], vec![64], vec![32, 16, 8, 4, 2, 1]]);
        assert_eq!(rungs.next(), [128], "and again");
    }

    #[test]
    fn what_answers_wait_for_is_checked_whatever_else_is_due() {
        let mut rungs = Rungs::default();
        (0..8).for_each(|power| rungs.ran(1 << power));
        [50, 50, 100].into_iter().for_each(|size| rungs.owes(size));
        assert_eq!(rungs.next(), [128, 64], "the largest size stands for its rung");
        assert_eq!(rungs.next(), [32, 16, 8, 4, 2, 1], "once");
    }
}
