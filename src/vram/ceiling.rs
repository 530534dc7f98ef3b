//! What may be on the device now: the plan, lowered by what the device and other processes say.
//!
//! A batch takes its bytes before its upload and gives them back after read-back. A lack of memory lowers the ceiling
//! below the batch that did not fit, another process's memory lowers it at once to what is left; it grows back in equal
//! steps, after a pause that doubles with each lack of memory, and never above the plan. Pure: time is given.

use std::time::Duration;

/// Steps that the ceiling takes from nothing to the plan.
const STEPS: u64 = 16;

/// Between two steps.
const STEP_EVERY: Duration = Duration::from_secs(1);

/// Before the first step after a lack of memory: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(600)];

/// A batch size and what it takes of the device beside the model, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rung {
    images: usize,
    bytes: u64,
}

/// Why the ceiling is where it is. A closed list, used as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// The plan allows no more.
    Plan,
    /// The device ran out of memory, and the ceiling is growing back.
    OutOfMemory,
    /// Other processes have the memory, or had it a moment ago.
    Pressure,
}

impl Limit {
    /// The name in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::OutOfMemory => "out_of_memory",
            Self::Pressure => "pressure",
        }
    }
}

/// How many images may be on the device, and how many bytes they take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ceiling {
    /// What the model takes without a batch, in bytes.
    fixed: u64,
    /// The plan's ladder, smallest first, at least one.
    rungs: Vec<Rung>,
    in_flight: usize,
    /// The plan's bytes for batches.
    most: u64,
    /// Bytes for batches now.
    allowed: u64,
    limit: Limit,
    /// What other processes leave.
    left: u64,
    held: u64,
    flying: usize,
    /// Whether a batch may wait there for its turn.
    ahead: bool,
    /// The one that does: its share becomes that of a running batch when another one ends.
    waiting: Option<(u64, u64)>,
    shares: u64,
    grow_at: Duration,
    pause: Duration,
}

/// The share of a batch that was admitted; to be given back once.
#[derive(Debug, PartialEq, Eq)]
pub struct Share {
    number: u64,
    bytes: u64,
}

impl Ceiling {
    /// For a model that takes `fixed` bytes and a ladder of batches, each with the bytes that it takes beside the model,
    /// smallest first, and for so many batches on the device at a time. Bytes grow along the ladder, if only by one; an
    /// empty one counts as single images.
    pub fn new(fixed: u64, ladder: impl IntoIterator<Item = (usize, u64)>, in_flight: usize) -> Self {
        let mut rungs: Vec<Rung> = ladder.into_iter().map(|(images, bytes)| Rung { images, bytes }).collect();
        if rungs.is_empty() {
            rungs.push(Rung { images: 1, bytes: 1 });
        }
        for at in 1..rungs.len() {
            rungs[at].bytes = rungs[at].bytes.max(rungs[at - 1].bytes.saturating_add(1));
        }
        let in_flight = in_flight.max(1);
        let most = rungs.last().map_or(0, |rung| rung.bytes).saturating_mul(in_flight as u64);
        let [pause, _] = PAUSES;
        Self {
            fixed,
            rungs,
            in_flight,
            most,
            allowed: most,
            limit: Limit::Plan,
            left: u64::MAX,
            held: 0,
            flying: 0,
            ahead: false,
            waiting: None,
            shares: 0,
            grow_at: Duration::ZERO,
            pause,
        }
    }

    /// Without measurements: batches of up to so many images. Each image counts as one byte.
    pub fn unmeasured(max_batch: usize, in_flight: usize) -> Self {
        let powers = std::iter::successors(Some(1_usize), |size| size.checked_mul(2));
        let sizes = powers.take_while(|size| *size < max_batch).chain([max_batch.max(1)]);
        Self::new(0, sizes.map(|images| (images, images as u64)), in_flight)
    }

    /// Lets one more batch wait for its turn with its pixels on the device. The bytes of each batch must count those of
    /// one more.
    #[must_use]
    pub fn with_ahead(self) -> Self {
        Self { ahead: true, ..self }
    }

    /// Another model is on the device, with a plan of its own. Batches that run or wait there keep their shares.
    pub fn replan(&mut self, fixed: u64, ladder: impl IntoIterator<Item = (usize, u64)>) {
        let Self { held, flying, ahead, waiting, shares, in_flight, .. } = *self;
        *self = Self { held, flying, ahead, waiting, shares, ..Self::new(fixed, ladder, in_flight) };
    }

    /// Images of the largest batch that may run now, whatever runs; 0 when other processes leave no room for one.
    pub fn largest(&self) -> usize {
        let shared = self.fitting(|bytes| bytes.saturating_mul(self.in_flight as u64) <= self.allowed);
        // Rather one batch at a time than none.
        if shared > 0 { shared } else { self.fitting(|bytes| bytes <= self.allowed).min(self.rungs[0].images) }
    }

    /// Images that [`Self::admit`] would take now of those that are there, as one batch. Ahead of its turn only a full
    /// one is taken: another one may still grow.
    pub fn room(&self, images: usize) -> usize {
        let (largest, free) = (self.largest(), self.allowed.saturating_sub(self.held));
        if self.flying < self.in_flight {
            return self.fitting(|bytes| bytes <= free).min(largest);
        }
        let full = self.ahead && self.waiting.is_none() && images >= largest;
        if full { largest } else { 0 }
    }

    /// The share of a batch of so many images; `None` where it has no room now.
    pub fn admit(&mut self, images: usize) -> Option<Share> {
        if images == 0 || images > self.room(images) {
            return None;
        }
        let share = Share { number: self.shares, bytes: self.bytes(images) };
        self.shares += 1;
        if self.flying < self.in_flight {
            self.held += share.bytes;
            self.flying += 1;
        } else {
            self.waiting = Some((share.number, share.bytes));
        }
        Some(share)
    }

    /// Takes a share back, whose batch has been read back or has failed.
    pub fn release(&mut self, share: Share) {
        if self.waiting.is_some_and(|(number, _)| number == share.number) {
            // Its answers were given out before those of the batch before it.
            self.waiting = None;
            return;
        }
        self.held = self.held.saturating_sub(share.bytes);
        match self.waiting.take() {
            Some((_, bytes)) => self.held += bytes,
            None => self.flying = self.flying.saturating_sub(1),
        }
    }

    /// The device had no room for a batch of so many images.
    pub fn ran_out(&mut self, images: usize, now: Duration) {
        let smaller = self.rungs.iter().rev().find(|rung| rung.images < images).unwrap_or(&self.rungs[0]);
        let below = smaller.bytes.saturating_mul(self.in_flight as u64);
        if below < self.allowed {
            self.allowed = below;
            self.limit = Limit::OutOfMemory;
        }
        self.grow_at = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSES[1]);
    }

    /// A batch of so many images ran: the plan's largest shows that the device has what the plan says.
    pub fn ran(&mut self, images: usize) {
        if images > self.rungs.iter().rev().nth(1).map_or(0, |rung| rung.images) {
            [self.pause, _] = PAUSES;
        }
    }

    /// Other processes leave so many bytes for the model and its batches.
    pub fn leave(&mut self, bytes: u64, now: Duration) {
        let bytes = bytes.saturating_sub(self.fixed);
        self.left = bytes;
        if bytes < self.allowed {
            self.allowed = bytes;
            self.limit = Limit::Pressure;
            self.grow_at = self.grow_at.max(now + STEP_EVERY);
        }
    }

    /// Grows by a step when its time has come. To be called now and then; says whether anything changed.
    pub fn grow(&mut self, now: Duration) -> bool {
        let most = self.most.min(self.left);
        if self.allowed >= most || now < self.grow_at {
            return false;
        }
        self.allowed = self.allowed.saturating_add(self.most.div_ceil(STEPS)).min(most);
        self.grow_at = now + STEP_EVERY;
        if self.allowed == self.most {
            self.limit = Limit::Plan;
        }
        true
    }

    /// Bytes that batches may take now.
    pub fn allowed(&self) -> u64 {
        self.allowed
    }

    /// Bytes that batches have now.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Batches that run now.
    pub fn flying(&self) -> usize {
        self.flying
    }

    /// Images of the plan's largest batch.
    pub fn planned(&self) -> usize {
        self.rungs.last().map_or(0, |rung| rung.images)
    }

    /// Why the ceiling is where it is.
    pub fn limit(&self) -> Limit {
        self.limit
    }

    fn fitting(&self, fits: impl Fn(u64) -> bool) -> usize {
        self.rungs.iter().rev().find(|rung| fits(rung.bytes)).map_or(0, |rung| rung.images)
    }

    /// What a batch of so many images takes: it is filled up to the next rung.
    fn bytes(&self, images: usize) -> u64 {
        let rung = self.rungs.iter().find(|rung| rung.images >= images).or(self.rungs.last());
        rung.map_or(0, |rung| rung.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn ceiling(in_flight: usize) -> Ceiling {
        Ceiling::new(1_000, [(1, 100), (2, 200), (4, 400), (8, 800)], in_flight)
    }

    #[test]
    fn batches_take_the_bytes_of_their_rung_and_wait_for_room() {
        let mut ceiling = ceiling(2);
        let five = ceiling.admit(5).unwrap();
        assert_eq!((ceiling.held(), ceiling.room(1), ceiling.flying()), (800, 8, 1));
        let one = ceiling.admit(1).unwrap();
        assert_eq!((ceiling.held(), ceiling.room(1), ceiling.admit(1)), (900, 0, None), "two at a time");
        ceiling.release(five);
        assert_eq!((ceiling.held(), ceiling.room(1)), (100, 8));
        assert_eq!(ceiling.admit(9), None, "over the plan");
        ceiling.release(one);
        assert_eq!((ceiling.held(), ceiling.flying()), (0, 0));
    }

    #[test]
    fn a_lack_of_memory_lowers_it_below_the_batch_and_it_grows_back_later_each_time() {
        let mut ceiling = ceiling(1);
        ceiling.ran_out(7, at(0));
        assert_eq!((ceiling.largest(), ceiling.limit()), (4, Limit::OutOfMemory));
        ceiling.ran_out(4, at(1));
        assert_eq!(ceiling.largest(), 2);
        (0..5).for_each(|_| ceiling.ran_out(1, at(2)));
        assert_eq!(ceiling.largest(), 1, "a single image is always tried");
        assert!(!ceiling.grow(at(500)), "the pause has doubled to its longest");
        let mut now = 602;
        while ceiling.grow(at(now)) {
            assert!(!ceiling.grow(at(now)), "a step a second");
            now += 1;
        }
        assert_eq!((ceiling.largest(), ceiling.allowed(), ceiling.limit()), (8, 800, Limit::Plan));
        assert_eq!(now - 602, 14);
        ceiling.ran(5);
        ceiling.ran_out(8, at(1000));
        assert!(!ceiling.grow(at(1009)) && ceiling.grow(at(1010)), "a batch of the plan's ran: the pause begins anew");
    }

    #[test]
    fn other_processes_lower_it_at_once_down_to_nothing() {
        let mut ceiling = ceiling(1);
        let share = ceiling.admit(8).unwrap();
        ceiling.leave(1_450, at(5));
        assert_eq!((ceiling.largest(), ceiling.room(1), ceiling.limit()), (4, 0, Limit::Pressure));
        ceiling.release(share);
        assert_eq!(ceiling.room(1), 4);
        ceiling.leave(900, at(6));
        assert_eq!((ceiling.largest(), ceiling.admit(1)), (0, None));
        ceiling.leave(1_250, at(7));
        for now in 7..60 {
            ceiling.grow(at(now));
        }
        assert_eq!(ceiling.largest(), 2, "no more than they leave");
        ceiling.leave(u64::MAX, at(60));
        assert_eq!(ceiling.largest(), 2);
        for now in 60..90 {
            ceiling.grow(at(now));
        }
        assert_eq!((ceiling.largest(), ceiling.limit()), (8, Limit::Plan));
    }

    #[test]
    fn one_batch_at_a_time_is_better_than_none() {
        let mut ceiling = ceiling(4);
        assert_eq!(ceiling.largest(), 8);
        ceiling.leave(1_150, at(0));
        assert_eq!(ceiling.largest(), 1);
        let share = ceiling.admit(1).unwrap();
        assert_eq!(ceiling.room(1), 0);
        ceiling.release(share);
    }

    #[test]
    fn a_full_batch_waits_ahead_and_takes_over_the_share_of_the_one_that_ends() {
        let mut ceiling = ceiling(1).with_ahead();
        let first = ceiling.admit(3).unwrap();
        assert_eq!((ceiling.room(7), ceiling.room(8), ceiling.room(20)), (0, 8, 8), "others may still grow");
        let second = ceiling.admit(8).unwrap();
        assert_eq!((ceiling.held(), ceiling.flying(), ceiling.room(20)), (400, 1, 0), "one waits at a time");
        ceiling.release(first);
        assert_eq!((ceiling.held(), ceiling.flying()), (800, 1));
        let third = ceiling.admit(8).unwrap();
        assert_eq!(ceiling.room(8), 0);
        ceiling.replan(1_000, [(1, 50), (2, 100)]);
        ceiling.release(third);
        assert_eq!((ceiling.held(), ceiling.flying()), (800, 1), "given back before its turn");
        ceiling.release(second);
        assert_eq!((ceiling.held(), ceiling.flying(), ceiling.room(1)), (0, 0, 2));
        ceiling.leave(1_000, at(0));
        let none = ceiling.admit(2);
        assert_eq!((none, ceiling.room(20)), (None, 0), "nothing waits where nothing may run");
    }

    #[test]
    fn another_model_has_a_plan_of_its_own_and_running_batches_keep_their_shares() {
        let mut ceiling = ceiling(2);
        let share = ceiling.admit(8).unwrap();
        ceiling.ran_out(8, at(0));
        ceiling.replan(2_000, [(1, 300), (2, 600)]);
        assert_eq!((ceiling.planned(), ceiling.largest(), ceiling.held()), (2, 2, 800));
        assert_eq!(ceiling.room(1), 1, "of 1200 bytes 800 are held");
        ceiling.release(share);
        assert_eq!(ceiling.room(1), 2);
        ceiling.leave(2_650, at(1));
        assert_eq!(ceiling.largest(), 1);
    }

    #[test]
    fn without_measurements_the_largest_batch_is_the_one_given() {
        let mut ceiling = Ceiling::unmeasured(6, 1);
        assert_eq!((ceiling.largest(), ceiling.planned()), (6, 6));
        ceiling.ran_out(6, at(0));
        assert_eq!(ceiling.largest(), 4);
        assert_eq!(Ceiling::unmeasured(0, 0).largest(), 1);
        assert_eq!(Ceiling::unmeasured(8, 1).largest(), 8);
    }
}
