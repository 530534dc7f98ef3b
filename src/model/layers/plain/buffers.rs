//! Buffers for results, used again by later layers and later batches.
//!
//! A network asks for the same lengths again and again, some of megabytes: from the allocator each would be new pages, to
//! be mapped and filled with zeros. A layer's input goes back here once nobody else holds it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{DType, TensorData};
use burn_flex::FlexTensor;

/// Values kept for each thread, in buffers of the largest length: a block's input, the result of its first layer and that
/// of its last.
const KEPT_PER_THREAD: usize = 3;

/// The buffers of one model.
#[derive(Clone, Debug, Default)]
pub(in crate::model::layers) struct Buffers(Arc<Mutex<Kept>>);

/// Buffers that nobody uses.
#[derive(Debug, Default)]
struct Kept {
    /// The one that has waited longest first.
    buffers: VecDeque<Vec<f32>>,
    values: usize,
    /// The largest length that was asked for.
    largest: usize,
}

impl Buffers {
    /// Runs a kernel on the values of `x` and `residual`, which it fills a new tensor from.
    pub(in crate::model::layers) fn fill(
        &self,
        x: FlexTensor,
        residual: Option<FlexTensor>,
        dims: &[usize],
        run: impl FnOnce(&[f32], Option<&[f32]>, &mut [f32]),
    ) -> FlexTensor {
        let (x, residual) = (contiguous(x), residual.map(contiguous));
        let mut out = self.take(dims.iter().product());
        run(x.storage(), residual.as_ref().map(FlexTensor::storage), &mut out);
        self.give_back(x);
        if let Some(residual) = residual {
            self.give_back(residual);
        }
        FlexTensor::from_data(TensorData::new(out, dims.to_vec()))
    }

    /// A buffer with any values in it.
    fn take(&self, length: usize) -> Vec<f32> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.largest = kept.largest.max(length);
        // The one that was used last is likeliest to be in a cache.
        if let Some(at) = kept.buffers.iter().rposition(|buffer| buffer.len() == length)
            && let Some(buffer) = kept.buffers.remove(at)
        {
            kept.values -= length;
            return buffer;
        }
        drop(kept);
        vec![0.0; length]
    }

    /// Keeps the buffer of a tensor that nobody else holds, and lets go of the ones that have waited longest.
    fn give_back(&self, tensor: FlexTensor) {
        if !tensor.is_unique() || tensor.dtype() != DType::F32 {
            return;
        }
        let Ok(values) = tensor.into_data().into_vec::<f32>() else { return };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let most = KEPT_PER_THREAD * rayon::current_num_threads() * kept.largest;
        kept.values += values.len();
        kept.buffers.push_back(values);
        while kept.values > most {
            let Some(oldest) = kept.buffers.pop_front() else { return };
            kept.values -= oldest.len();
        }
    }
}

/// The tensor, or a copy with its values one after another.
fn contiguous(tensor: FlexTensor) -> FlexTensor {
    // Lets go of the original: shared with it, a buffer could not be used again.
    tensor.to_contiguous()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(length: usize) -> FlexTensor {
        FlexTensor::from_data(TensorData::new(vec![1.0f32; length], [length]))
    }

    fn kept(buffers: &Buffers) -> Vec<usize> {
        buffers.0.lock().unwrap().buffers.iter().map(Vec::len).collect()
    }

    #[test]
    fn a_layers_input_is_used_again() {
        let buffers = Buffers::default();
        let x = tensor(8);
        let at = x.storage::<f32>().as_ptr();
        let y = buffers.fill(x, None, &[4], |x, _, out| out.copy_from_slice(&x[..4]));
        assert_eq!(kept(&buffers), [8]);
        let z = buffers.fill(y, None, &[2, 4], |_, _, out| out.fill(2.0));
        assert_eq!(z.storage::<f32>().as_ptr(), at);
        assert_eq!(kept(&buffers), [4]);
    }

    #[test]
    fn what_somebody_holds_is_not() {
        let buffers = Buffers::default();
        let x = tensor(8);
        let held = x.clone();
        buffers.fill(x, None, &[4], |_, _, out| out.fill(0.0));
        assert!(kept(&buffers).is_empty());
        assert_eq!(held.storage::<f32>(), [1.0; 8]);
    }

    #[test]
    fn buffers_are_bounded_by_the_largest() {
        let buffers = Buffers::default();
        buffers.take(10);
        let most = KEPT_PER_THREAD * rayon::current_num_threads() * 10;
        for length in (1..=10).cycle().take(100) {
            buffers.give_back(tensor(length));
            assert!(kept(&buffers).iter().sum::<usize>() <= most);
        }
        assert_eq!(kept(&buffers).last(), Some(&10));
    }
}
