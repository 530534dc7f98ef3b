//! The way from bytes to what the first layer reads.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Int, Tensor, TensorData};

use super::kernels::Kernels;
use super::{plain, upload};

/// `(byte − mean) / std` of each colour. Pixels travel to a device as bytes, a quarter of what their floats would be.
#[derive(Debug)]
pub(in crate::model) struct Normalise<B: Backend> {
    mean: [f32; 3],
    std: [f32; 3],
    /// Mean and deviation, `[1, 1, 1, 3]`.
    tensors: [Tensor<B, 4>; 2],
    device: B::Device,
}

impl<B: Kernels> Normalise<B> {
    /// With the mean and the deviation of each colour, in bytes.
    pub(in crate::model) fn new(mean: [f32; 3], std: [f32; 3], device: &B::Device) -> Self {
        let tensors = [mean, std].map(|values| upload(values.to_vec(), [1, 1, 1, 3], device));
        Normalise { mean, std, tensors, device: device.clone() }
    }

    /// Takes `images × rows × columns × 3` bytes, gives `[images, rows, columns, 3]`.
    pub(in crate::model) fn forward(&self, rgb: Vec<u8>, [images, rows, columns]: [usize; 3]) -> Tensor<B, 4> {
        let dims = [images, rows, columns, 3];
        if B::PLAIN {
            let mut values = vec![0.0; rgb.len()];
            plain::normalise(&rgb, self.mean, self.std, &mut values);
            return upload(values, dims, &self.device);
        }
        let pixels = Tensor::<B, 4, Int>::from_data(TensorData::new(rgb, dims), (&self.device, DType::U8));
        let [mean, std] = self.tensors.clone();
        (pixels.float() - mean) / std
    }
}
