//! A worker and its device in simulated time: traffic, other processes, batches that do not fit.
#![allow(clippy::cast_possible_truncation, reason = "simulated numbers")]

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use stoker::vram::{
    Bounds, Budget, Ceiling, DeviceMemory, Key, Measured, Plan, Share, Simulated, Simulation, Wanted, climb,
};

const MIB: u64 = 1 << 20;
/// Simulated time between two things that happen.
const TICK: Duration = Duration::from_millis(50);
/// Ticks between two looks at the memory.
const LOOK: u64 = 4;
const MAX_BATCH: usize = 256;

fn devices() -> impl Strategy<Value = (Simulation, u64)> {
    (
        (256_u64..65_536, 0.0..1.1_f64, 1_u64..4_096),
        (prop_oneof![Just(0.0), 0.0..0.3_f64], 0.0..0.005_f64),
        (0.0..0.05_f64, 0.0001..0.02_f64),
        any::<u64>(),
    )
        .prop_map(|((capacity, model, image), (fragmentation, noise), (launch_seconds, image_seconds), seed)| {
            let capacity = capacity * MIB;
            // From a quarter of a MiB on.
            let (fixed, image) = ((capacity as f64 * model * 0.5) as u64, image * MIB / 4);
            let about = Simulation { capacity, fixed, image, fragmentation, launch_seconds, image_seconds, noise };
            (about, seed)
        })
}

pub(super) fn plan(device: &Simulated, fraction: f64, in_flight: usize) -> Result<Plan, String> {
    let reading = device.read().unwrap();
    let budget = Budget::new(reading, fraction, None, 0);
    let bounds = Bounds { base: reading.process, budget: budget.bytes(), max_batch: MAX_BATCH };
    let climbed = climb(bounds, &mut &*device).unwrap();
    let formulations = Default::default();
    let (steps, stop) = (climbed.steps, climbed.stop);
    let measured = Measured { at: 0, budget, base: reading.process, steps, stop, formulations };
    let key = Key { device: "x".into(), model: "x".into(), fusion: true, stoker: "x".into() };
    let wanted = Wanted { max_batch: MAX_BATCH, in_flight, outstanding: None };
    Plan::new(key, measured, wanted, "the simulated device").map_err(|error| error.to_string())
}

fn planned(plan: &Plan) -> Ceiling {
    Ceiling::new(plan.decision.fixed_bytes, plan.ladder(), plan.decision.in_flight)
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// So many images come.
    Arrive(usize),
    /// Another process takes this share of the device.
    Foreign(f64),
    /// Time passes, in ticks.
    Pass(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (1_usize..300).prop_map(Event::Arrive),
        1 => (0.0..1.0_f64).prop_map(Event::Foreign),
        1 => Just(Event::Foreign(0.0)),
        4 => (1_u64..40).prop_map(Event::Pass),
    ];
    proptest::collection::vec(event, 1..40)
}

/// A batch on the device.
struct Flying {
    images: Vec<u64>,
    share: Share,
    bytes: u64,
    done: u64,
}

struct Worker<'a> {
    device: &'a Simulated,
    budget: Budget,
    ceiling: Ceiling,
    tick: u64,
    waiting: VecDeque<u64>,
    /// What the device had no room for, one by one: the worker would end and return it, and it would come again.
    returned: Vec<u64>,
    flying: Vec<Flying>,
    /// A batch that waits for its turn.
    ahead: Option<(Vec<u64>, Share)>,
    answered: Vec<u64>,
    splits: usize,
}

impl Worker<'_> {
    fn now(&self) -> Duration {
        TICK * u32::try_from(self.tick).unwrap()
    }

    fn step(&mut self) {
        self.tick += 1;
        let now = self.now();
        self.waiting.extend(self.returned.drain(..));
        if self.tick.is_multiple_of(LOOK) {
            let Budget { fraction, limit, set_aside, .. } = self.budget;
            let budget = Budget::new(self.device.read().unwrap(), fraction, limit, set_aside);
            self.ceiling.leave(budget.bytes(), now);
            self.ceiling.grow(now);
        }
        for at in (0..self.flying.len()).rev() {
            if self.flying[at].done <= self.tick {
                let Flying { images, share, bytes, .. } = self.flying.remove(at);
                self.device.release(bytes);
                self.ceiling.ran(images.len());
                self.ceiling.release(share);
                self.answered.extend(images);
                if let Some((images, share)) = self.ahead.take() {
                    self.launch(images, share);
                }
            }
        }
        while !self.waiting.is_empty() && self.ceiling.room(self.waiting.len()) > 0 {
            let images = self.ceiling.room(self.waiting.len()).min(self.waiting.len());
            let (flying, held) = (self.ceiling.flying(), self.ceiling.held());
            let share = self.ceiling.admit(images).expect("there was room");
            let images: Vec<u64> = self.waiting.drain(..images).collect();
            if self.ceiling.flying() == flying {
                assert_eq!((self.ceiling.held(), images.len()), (held, self.ceiling.largest()), "a full one, ahead");
                assert!(self.ahead.is_none(), "one at a time");
                self.ahead = Some((images, share));
            } else {
                assert!(self.ceiling.held() <= self.ceiling.allowed(), "over the ceiling: {:?}", self.ceiling);
                self.launch(images, share);
            }
        }
    }

    fn launch(&mut self, images: Vec<u64>, share: Share) {
        match self.device.hold(images.len()) {
            Ok(bytes) => {
                let seconds = self.device.seconds(images.len());
                let done = self.tick + (seconds / TICK.as_secs_f64()) as u64;
                self.flying.push(Flying { images, share, bytes, done });
            }
            Err(_) => {
                // The device thread halves it, one after the other, within the same share.
                self.splits += 1;
                self.ceiling.ran_out(images.len(), self.now());
                let mut parts = vec![images];
                while let Some(mut part) = parts.pop() {
                    match self.device.hold(part.len()) {
                        Ok(bytes) => {
                            self.device.release(bytes);
                            self.answered.extend(part);
                        }
                        Err(_) if part.len() > 1 => {
                            let rest = part.split_off(part.len() / 2);
                            parts.extend([rest, part]);
                        }
                        Err(_) => self.returned.extend(part),
                    }
                }
                self.ceiling.release(share);
                if let Some((images, share)) = self.ahead.take() {
                    self.launch(images, share);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, max_global_rejects: 100_000, ..ProptestConfig::default() })]

    #[test]
    fn the_plan_is_within_the_budget_and_nearly_as_fast_as_the_best_batch_that_fits(
        (device, seed) in devices(),
        fraction in 0.3..1.0_f64,
    ) {
        let simulated = Simulated::new(device, seed);
        let budget = Budget::new(simulated.read().unwrap(), fraction, None, 0).bytes();
        // Within the budget however its pieces lie, with what the prediction of a doubling makes of gaps.
        let room = |gaps: f64, batch: usize| {
            let batch = device.image as f64 * batch as f64 * (1.0 + gaps * device.fragmentation);
            device.fixed + batch as u64 <= budget
        };
        let sizes = || (0..=8).map(|power| 1_usize << power);
        let rate = |batch: usize| batch as f64 / simulated.seconds(batch);
        let surely = sizes().filter(|batch| room(3.0, *batch)).map(rate).fold(0.0, f64::max);
        match plan(&simulated, fraction, 1) {
            Ok(plan) => {
                let chosen = plan.decision.batch;
                prop_assert!(room(0.0, chosen), "{} does not fit", chosen);
                prop_assert!(rate(chosen) >= surely * 0.95, "{} at {} against {}", chosen, rate(chosen), surely);
                prop_assert!(plan.measured.steps.iter().all(|step| step.bytes <= budget));
                prop_assert!(plan.decision.outstanding >= 2 * chosen);
                let json = serde_json::to_vec(&plan).unwrap();
                let read = Plan::parse(&json).unwrap();
                prop_assert_eq!((&read.key, read.decision.batch), (&plan.key, chosen));
                prop_assert!(read.ladder().eq(plan.ladder()));
            }
            Err(error) => {
                prop_assert_eq!(surely, 0.0, "{}", error);
                prop_assert!(error.contains("single image"), "{}", error);
            }
        }
    }

    #[test]
    fn whatever_happens_nothing_is_lost_or_done_twice_and_the_ceiling_comes_back(
        (device, seed) in devices(),
        (in_flight, ahead) in (1_usize..4, any::<bool>()),
        events in events(),
    ) {
        let simulated = Simulated::new(device, seed);
        let Ok(plan) = plan(&simulated, 0.9, in_flight) else { return Ok(()) };
        let mut worker = Worker {
            device: &simulated,
            budget: plan.measured.budget,
            ceiling: if ahead { planned(&plan).with_ahead() } else { planned(&plan) },
            tick: 0,
            waiting: VecDeque::new(),
            returned: Vec::new(),
            flying: Vec::new(),
            ahead: None,
            answered: Vec::new(),
            splits: 0,
        };
        let mut came = 0_u64;
        let mut alone = true;
        for event in events {
            match event {
                Event::Arrive(images) => {
                    worker.waiting.extend(came..came + images as u64);
                    came += images as u64;
                }
                Event::Foreign(share) => {
                    simulated.set_foreign((device.capacity as f64 * share) as u64);
                    alone &= share == 0.0;
                }
                Event::Pass(ticks) => (0..ticks).for_each(|_| worker.step()),
            }
            let used = simulated.read().unwrap();
            prop_assert!(used.peak <= device.capacity);
            prop_assert!(worker.ceiling.largest() <= plan.decision.batch);
        }
        // Others leave; what waits is done, and the ceiling grows back.
        simulated.set_foreign(0);
        let mut left = 40_000;
        while left > 0 && !(worker.waiting.is_empty() && worker.returned.is_empty() && worker.flying.is_empty()) {
            worker.step();
            left -= 1;
        }
        prop_assert!(left > 0, "stuck: {:?}", worker.ceiling);
        worker.answered.sort_unstable();
        prop_assert_eq!(&worker.answered, &(0..came).collect::<Vec<_>>());
        if alone && device.fragmentation == 0.0 {
            prop_assert_eq!(worker.splits, 0, "the plan did not fit");
        }
        // The longest pause and sixteen steps.
        for _ in 0..600 + 20 {
            worker.tick = (worker.tick / 20 + 1) * 20 - 1;
            worker.step();
        }
        prop_assert_eq!(worker.ceiling.largest(), planned(&plan).largest());
        prop_assert_eq!((worker.ceiling.held(), worker.ceiling.flying()), (0, 0));
    }
}
