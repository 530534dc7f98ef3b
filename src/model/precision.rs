//! The numbers in which a network's tensors are put on a device.
//!
//! Weights are read as `f32`; what uploads them asks here what they become. That holds for the time of one load, on the
//! thread that loads, so that no layer and no network has to pass it on.

use std::cell::Cell;

use burn::tensor::DType;

thread_local! {
    static FLOAT: Cell<DType> = const { Cell::new(DType::F32) };
}

/// Runs `load` with every upload in `float`.
pub(super) fn within<T>(float: DType, load: impl FnOnce() -> T) -> T {
    /// Also after a panic.
    struct Restore(DType);
    impl Drop for Restore {
        fn drop(&mut self) {
            FLOAT.set(self.0);
        }
    }
    let _restore = Restore(FLOAT.replace(float));
    load()
}

/// What uploads on this thread are in: `f32`, unless a load says otherwise.
pub(super) fn float() -> DType {
    FLOAT.get()
}
