//! Batches for which the device has no room.

use std::sync::Arc;

use crate::image::Pixels;
use crate::model::{Answer, Classifier, DeviceError};

/// A classifier that halves a batch when the device runs out of memory, down to single images.
pub(super) struct Splitting<'a> {
    classifier: &'a mut dyn Classifier,
    /// Batches that ran, in images.
    pub(super) sizes: Vec<usize>,
    /// Batches that did not fit, in images.
    pub(super) too_large: Vec<usize>,
}

impl<'a> Splitting<'a> {
    pub(super) fn new(classifier: &'a mut dyn Classifier) -> Self {
        Self { classifier, sizes: Vec::new(), too_large: Vec::new() }
    }
}

impl Splitting<'_> {
    /// The batch, or both halves of it when `tried` says that it did not fit.
    fn halved(
        &mut self,
        images: &[&Pixels],
        tried: Result<Vec<Answer>, DeviceError>,
    ) -> Result<Vec<Answer>, DeviceError> {
        match tried {
            Err(DeviceError::OutOfMemory(error)) if images.len() > 1 => {
                self.too_large.push(images.len());
                let (left, right) = images.split_at(images.len() / 2);
                tracing::warn!(batch = images.len(), error, "out of device memory; splitting the batch");
                let mut answers = self.classify(left)?;
                answers.extend(self.classify(right)?);
                Ok(answers)
            }
            result => {
                self.sizes.push(images.len());
                result
            }
        }
    }
}

impl Classifier for Splitting<'_> {
    fn classify(&mut self, images: &[&Pixels]) -> Result<Vec<Answer>, DeviceError> {
        let tried = self.classifier.classify(images);
        self.halved(images, tried)
    }

    fn classify_ahead(
        &mut self,
        images: &Arc<[Pixels]>,
        next: &mut dyn FnMut() -> Option<Arc<[Pixels]>>,
    ) -> Result<Vec<Answer>, DeviceError> {
        let tried = self.classifier.classify_ahead(images, next);
        self.halved(&images.iter().collect::<Vec<_>>(), tried)
    }

    fn device(&self) -> &str {
        self.classifier.device()
    }

    fn computes_batches_as_one(&self) -> bool {
        self.classifier.computes_batches_as_one()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with room for `room` images a batch, whose logits are each image's first byte.
    struct Small {
        room: usize,
        batches: Vec<usize>,
    }

    impl Classifier for Small {
        fn classify(&mut self, images: &[&Pixels]) -> Result<Vec<Answer>, DeviceError> {
            self.batches.push(images.len());
            if images.len() > self.room {
                return Err(DeviceError::OutOfMemory("test".to_owned()));
            }
            let answer = |image: &&Pixels| Answer { logits: vec![f32::from(image.rgb[0])], embedding: None };
            Ok(images.iter().map(answer).collect())
        }

        fn device(&self) -> &str {
            "test"
        }
    }

    fn pixels(count: u8) -> Vec<Pixels> {
        (0..count).map(|value| Pixels { height: 1, width: 1, rgb: vec![value; 3] }).collect()
    }

    #[test]
    fn a_batch_that_does_not_fit_is_split_and_keeps_its_order() {
        let mut device = Small { room: 3, batches: Vec::new() };
        let images = pixels(10);
        let mut splitting = Splitting::new(&mut device);
        let answers = splitting.classify(&images.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(splitting.too_large, [10, 5, 5]);
        assert_eq!(splitting.sizes, [2, 3, 2, 3], "sizes in use are those that ran");
        let firsts: Vec<f32> = answers.iter().map(|answer| answer.logits[0]).collect();
        assert_eq!(firsts, (0..10_u8).map(f32::from).collect::<Vec<_>>());
        assert_eq!(device.batches, [10, 5, 2, 3, 5, 2, 3]);
    }

    #[test]
    fn a_device_without_room_for_one_image_is_an_error() {
        let mut device = Small { room: 0, batches: Vec::new() };
        let images = pixels(2);
        let error = Splitting::new(&mut device).classify(&images.iter().collect::<Vec<_>>()).unwrap_err();
        assert!(matches!(error, DeviceError::OutOfMemory(_)));
        assert_eq!(device.batches, [2, 1]);
    }
}
