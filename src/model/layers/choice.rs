//! Which formulation of a convolution is used: the one that is given, or the fastest on the device.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::spec::{Axis, ConvSpec};

/// Tenths of the time of an earlier candidate, the likelier one, that a later one has to stay below: below noise, two
/// loads of a model would compute with different rounding.
const CLEARLY_FASTER_TENTHS: u32 = 9;

/// How a convolution is computed. The result is the same up to rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Formulation {
    /// A kernel of our own, where tensors are in plain memory.
    Own,
    /// The backend's own convolution, on a transposed view.
    Library,
    /// A matrix product: a kernel of one pixel, or one that never overlaps itself.
    Product,
    /// Depthwise: for each pixel of the kernel, the picture shifted by it, times its weights.
    Shifts,
}

/// The formulations of a network's convolutions on one device, by their shape. As JSON it is an object:
/// `{"3x3/2 3>32 224x224": "own"}`. Entries that no longer fit are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Formulations(BTreeMap<String, Formulation>);

impl Formulations {
    /// The formulation of a shape.
    pub fn get(&self, shape: &str) -> Option<Formulation> {
        self.0.get(shape).copied()
    }

    /// Sets the formulation of a shape.
    pub fn set(&mut self, shape: &str, formulation: Formulation) {
        self.0.insert(shape.to_owned(), formulation);
    }

    /// Adds those of `others`, which count where both have one.
    pub fn extend(&mut self, others: Formulations) {
        self.0.extend(others.0);
    }

    /// Every shape and its formulation.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Formulation)> {
        self.0.iter().map(|(shape, formulation)| (shape.as_str(), *formulation))
    }
}

/// What a convolution is known by in [`Formulations`]: `side×side/stride input>output rows×columns`, and what is unusual.
pub(super) fn shape_name(spec: &ConvSpec, axes: &[Axis; 2]) -> String {
    let ConvSpec { input, output, kernel, stride, groups, .. } = spec;
    let [rows, columns] = axes;
    let mut name = format!("{kernel}x{kernel}/{stride} {input}>{output} {}x{}", rows.input, columns.input);
    if *groups > 1 {
        name += &format!(" groups {groups}");
    }
    if axes.iter().any(|axis| axis.start != axis.end) {
        name += &format!(" padding {}+{} {}+{}", rows.start, rows.end, columns.start, columns.end);
    } else if axes.iter().any(|axis| axis.start > 0) {
        name += &format!(" padding {} {}", rows.start, columns.start);
    }
    name
}

/// What running a candidate showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// The shortest run.
    pub(super) shortest: Duration,
    /// What all of it took.
    pub(super) spent: Duration,
}

/// Chooses formulations, each shape's once.
#[derive(Debug)]
pub(super) struct Chooser {
    chosen: Formulations,
    /// Time that may still be spent on measuring.
    left: Duration,
}

impl Chooser {
    /// Takes what is `known`, and measures the rest for at most about `budget`.
    pub(super) fn new(known: Formulations, budget: Duration) -> Self {
        Chooser { chosen: known, left: budget }
    }

    /// What was chosen, and what was known.
    pub(super) fn chosen(&self) -> &Formulations {
        &self.chosen
    }

    /// The formulation of a shape: the known one if it is a candidate, or the fastest. The likeliest candidate comes first
    /// and is chosen when there is no time to measure. `measure` also gets the shortest time so far.
    pub(super) fn choose(
        &mut self,
        shape: &str,
        candidates: &[Formulation],
        mut measure: impl FnMut(Formulation, Option<Duration>) -> Measured,
    ) -> Formulation {
        if let Some(known) = self.chosen.get(shape).filter(|known| candidates.contains(known)) {
            return known;
        }
        let (mut best, mut cut) = ((candidates[0], None), false);
        let mut run = |left: &mut Duration, candidate, best| {
            let Measured { shortest, spent } = measure(candidate, best);
            *left = left.saturating_sub(spent);
            shortest
        };
        for candidate in candidates {
            cut = candidates.len() > 1 && self.left.is_zero();
            if candidates.len() == 1 || cut {
                break;
            }
            let shortest = run(&mut self.left, *candidate, best.1);
            if best.1.is_none_or(|best| clearly_shorter(shortest, best)) {
                // Other work on the machine may have slowed the earlier one down: it gets another chance.
                let again = best.1.map(|before| before.min(run(&mut self.left, best.0, None)));
                if again.is_none_or(|again| clearly_shorter(shortest, again)) {
                    best = (*candidate, Some(shortest));
                } else {
                    best.1 = again;
                }
            }
        }
        // What was not measured, another load has to measure. Here the same shape is not tried again: there is no time.
        if !cut && best.1 != Some(Duration::MAX) {
            self.chosen.set(shape, best.0);
        }
        best.0
    }
}

fn clearly_shorter(time: Duration, than: Duration) -> bool {
    time.saturating_mul(10) < than.saturating_mul(CLEARLY_FASTER_TENTHS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Formulation; 3] = [Formulation::Own, Formulation::Library, Formulation::Shifts];

    fn milliseconds(shortest: u64) -> Measured {
        Measured { shortest: Duration::from_millis(shortest), spent: Duration::from_millis(2 * shortest) }
    }

    fn times(formulation: Formulation) -> Measured {
        milliseconds(match formulation {
            Formulation::Own => 30,
            Formulation::Library => 20,
            Formulation::Product | Formulation::Shifts => 10,
        })
    }

    fn chooser(budget_milliseconds: u64) -> Chooser {
        Chooser::new(Formulations::default(), Duration::from_millis(budget_milliseconds))
    }

    #[test]
    fn the_fastest_is_chosen_and_measured_once() {
        let (mut chooser, mut runs) = (chooser(1_000), Vec::new());
        for _ in 0..2 {
            let chosen = chooser.choose("a", &ALL, |candidate, best| {
                runs.push((candidate, best.map(|best| best.as_millis())));
                times(candidate)
            });
            assert_eq!(chosen, Formulation::Shifts);
        }
        let [own, library, shifts] = ALL;
        assert_eq!(runs, [(own, None), (library, Some(30)), (own, None), (shifts, Some(20)), (library, None)]);
        assert_eq!(chooser.chosen().get("a"), Some(Formulation::Shifts));
    }

    #[test]
    fn a_later_candidate_must_be_clearly_faster() {
        let close = |candidate, _| milliseconds(if candidate == Formulation::Own { 100 } else { 95 });
        assert_eq!(chooser(1_000).choose("a", &ALL, close), Formulation::Own);
        let clear = |candidate, _| milliseconds(if candidate == Formulation::Own { 100 } else { 85 });
        assert_eq!(chooser(1_000).choose("a", &ALL, clear), Formulation::Library);
    }

    #[test]
    fn a_candidate_that_was_slow_once_is_measured_again() {
        let mut owns = [milliseconds(30), milliseconds(12)].into_iter();
        let run = |candidate, _| if candidate == Formulation::Own { owns.next().unwrap() } else { milliseconds(20) };
        assert_eq!(chooser(1_000).choose("a", &ALL, run), Formulation::Own);
    }

    #[test]
    fn what_is_given_is_not_measured_unless_it_does_not_fit() {
        let mut known = Formulations::default();
        known.set("a", Formulation::Library);
        known.set("b", Formulation::Product);
        let mut chooser = Chooser::new(known, Duration::from_secs(1));
        let a = chooser.choose("a", &ALL, |candidate, _| panic!("{candidate:?} is measured"));
        assert_eq!(a, Formulation::Library);
        assert_eq!(chooser.choose("b", &ALL, |candidate, _| times(candidate)), Formulation::Shifts);
    }

    #[test]
    fn without_time_the_best_so_far_is_used() {
        let mut chooser = chooser(150);
        assert_eq!(chooser.choose("a", &ALL, |candidate, _| times(candidate)), Formulation::Library);
        let likeliest = chooser.choose("b", &ALL, |candidate, _| panic!("{candidate:?} is measured"));
        assert_eq!(likeliest, Formulation::Own);
        assert_eq!(*chooser.chosen(), Formulations::default(), "the next load measures them");
    }

    #[test]
    fn the_only_candidate_is_not_measured() {
        let only = [Formulation::Library];
        let chosen = chooser(1_000).choose("a", &only, |candidate, _| panic!("{candidate:?} is measured"));
        assert_eq!(chosen, Formulation::Library);
    }

    #[test]
    fn formulations_are_stored_as_an_object() {
        let mut formulations = Formulations::default();
        formulations.set("3x3/2 3>32 224x224", Formulation::Own);
        let json = serde_json::to_string(&formulations).unwrap();
        assert_eq!(json, r#"{"3x3/2 3>32 224x224":"own"}"#);
        assert_eq!(serde_json::from_str::<Formulations>(&json).unwrap(), formulations);
    }

    #[test]
    fn shapes_that_differ_have_different_names() {
        use crate::model::layers::{Act, Padding};
        let spec = ConvSpec {
            input: 32,
            output: 32,
            kernel: 3,
            stride: 2,
            groups: 32,
            padding: Padding::Same,
            activation: Act::None,
        };
        let axes = |size, padding| [Axis::new(size, 3, 2, padding).unwrap(), Axis::new(size, 3, 2, padding).unwrap()];
        assert_eq!(shape_name(&spec, &axes(56, Padding::Same)), "3x3/2 32>32 56x56 groups 32 padding 0+1 0+1");
        assert_eq!(shape_name(&spec, &axes(56, Padding::Each(1))), "3x3/2 32>32 56x56 groups 32 padding 1 1");
        let dense = ConvSpec { groups: 1, ..spec };
        assert_eq!(shape_name(&dense, &axes(57, Padding::Each(0))), "3x3/2 32>32 57x57");
    }
}
