//! Failures as the library has them. A panic counts as its own by the path of its file, so this file has such a name.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::{MAX_TEXT, guarded, trial, verdict, watch};
use crate::model::DeviceError;

/// As a thread of the library's does.
fn panic_elsewhere(message: &'static str) {
    drop(thread::spawn(move || panic!("{message}")).join());
}

#[test]
fn no_answer_counts_that_has_a_panic_of_the_library_beside_it() {
    watch();
    // One while kernels are tuned.
    let attempts = AtomicUsize::new(0);
    let answer = guarded(false, || {
        if attempts.fetch_add(1, Ordering::Relaxed) == 0 {
            panic_elsewhere("a kernel that asks for too much");
        }
        Ok(7)
    });
    assert_eq!((answer, attempts.into_inner()), (Ok(7), 2));
    // One each time: what was to be computed was not.
    let error = guarded(false, || {
        panic_elsewhere("the kernel failed");
        Ok(7)
    });
    assert_eq!(error, Err("the kernel failed".to_owned()));
    // The cause comes before what reached the caller.
    let error = guarded(false, || -> Result<(), String> {
        panic_elsewhere("device lost");
        Err("the channel is closed".to_owned())
    });
    assert_eq!(error, Err("device lost; the channel is closed".to_owned()));
    // On this thread, with a text as long as a backtrace.
    let error = guarded(false, || -> Result<(), String> { panic!("{}\nat somewhere", "x".repeat(5 * MAX_TEXT)) });
    assert_eq!(error.unwrap_err(), "x".repeat(MAX_TEXT));
    assert_eq!(guarded(false, || Ok(7)), Ok(7), "nothing of it stays");
    // A trial's failure is nobody else's.
    let trials = guarded(false, || {
        let panicking = trial(|| {
            panic_elsewhere("the candidate failed");
            Ok(1)
        });
        Ok((panicking, trial(|| -> Result<(), String> { panic!("here") }), trial(|| Ok(2))))
    });
    assert_eq!(trials, Ok((None, None, Some(2))));
}

#[test]
fn a_lack_of_memory_is_told_from_a_device_that_failed() {
    for message in [
        "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
        "Out of Memory",
        "can't allocate buffer of size: 3221225472",
        "VK_ERROR_OUT_OF_DEVICE_MEMORY",
    ] {
        assert!(matches!(verdict(message.to_owned()), DeviceError::OutOfMemory(text) if text == message), "{message}");
    }
    for message in ["CUDA_ERROR_ILLEGAL_ADDRESS", "Parent device is lost", "a panic without a message"] {
        assert!(matches!(verdict(message.to_owned()), DeviceError::Failed(text) if text == message), "{message}");
    }
}
