//! What goes wrong inside the tensor library, as one text and one verdict.
//!
//! The library runs a GPU's work on a thread of its own. A panic there reaches the caller as a channel's error without
//! a reason, and work that nobody waits for is dropped in silence: an answer may come back from memory that no kernel
//! has written. [`watch`] therefore notes the panics of its crates, and [`guarded`] gives no answer that has one beside
//! it.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once, PoisonError};

use crate::model::DeviceError;

/// Bytes of an error's text that are kept; the library's carry backtraces.
const MAX_TEXT: usize = 1000;
/// Panics that are kept: the first one is the cause.
const MAX_PANICS: usize = 4;
/// Parts of the paths of the crates that drive a GPU.
const LIBRARY: [&str; 5] = ["cubecl", "cubek", "burn-", "wgpu", "cudarc"];
/// How the libraries say that memory has run out: CUDA's driver, wgpu, CubeCL's pools (a buffer that the device has no
/// room for, or that is larger than any it allows) and its launches.
const OUT_OF_MEMORY: [&str; 7] = [
    "out of memory",
    "out of device memory",
    "out_of_device_memory",
    "out-of-memory",
    "out_of_memory",
    "outofmemory",
    "can't allocate buffer of size",
];

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Held while a GPU works for one thread: the library gives an error to whoever asks next, and notes nobody's name.
static TURN: Mutex<()> = Mutex::new(());

/// Notes from now on the panics in the crates that drive a GPU, on any thread.
pub(super) fn watch() {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        let next = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if QUIET.get() {
                return;
            }
            let library = panic.location().is_some_and(|at| LIBRARY.iter().any(|part| at.file().contains(part)));
            if library {
                let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
                if panics.len() < MAX_PANICS {
                    panics.push(panic.payload_as_str().unwrap_or("a panic without a message").to_owned());
                }
            }
            next(panic);
        }));
    });
}

/// Whether a library is there that panics where it cannot be loaded; nobody is shown the panic.
#[cfg(feature = "cuda")]
pub(crate) fn probe<T>(load: impl Fn() -> T) -> Option<T> {
    watch();
    QUIET.set(true);
    let loaded = catch_unwind(AssertUnwindSafe(load)).ok();
    QUIET.set(false);
    loaded
}

/// Runs `work` on the tensor library and gives whatever goes wrong in it as one text. On a GPU others wait meanwhile, a
/// model that is loaded for the one that runs as well; the processor's backend (`plain`) panics where it is called.
///
/// A candidate that fails while kernels are tuned panics too, and harms nothing: an answer with a panic beside it is
/// computed once more, and counts if nothing goes wrong then.
///
/// # Errors
/// The library's error, or the message of a panic on this thread or on one of the library's.
pub(super) fn guarded<T>(plain: bool, work: impl Fn() -> Result<T, String>) -> Result<T, String> {
    if plain {
        return caught(work).map_err(|error| text(&error));
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    take_panics();
    let first = attempt(&work);
    let answer = match first {
        (Ok(answer), panics) if panics.is_empty() => return Ok(answer),
        // What it put on the device goes before the second one comes.
        (Ok(answer), _) => {
            drop(answer);
            attempt(&work)
        }
        failed => failed,
    };
    match answer {
        (Ok(answer), panics) if panics.is_empty() => Ok(answer),
        (Ok(_), panics) => Err(text(&panics.join("; "))),
        (Err(error), panics) => Err(text(&join(error, &panics))),
    }
}

/// Runs what may fail without harm, inside of [`guarded`]: `None` if it did, and nothing of it is left.
pub(in crate::model) fn trial<T>(work: impl Fn() -> Result<T, String>) -> Option<T> {
    let before = take_panics();
    let (result, panics) = attempt(work);
    let result = result.ok().filter(|_| panics.is_empty());
    *PANICS.lock().unwrap_or_else(PoisonError::into_inner) = before;
    result
}

/// Whether a smaller batch may work after this.
pub(super) fn verdict(message: String) -> DeviceError {
    if is_out_of_memory(&message) { DeviceError::OutOfMemory(message) } else { DeviceError::Failed(message) }
}

/// Whether an error of the tensor library means that memory has run out.
pub(crate) fn is_out_of_memory(message: &str) -> bool {
    let lower = message.to_lowercase();
    OUT_OF_MEMORY.iter().any(|sign| lower.contains(sign))
}

fn attempt<T>(work: impl Fn() -> Result<T, String>) -> (Result<T, String>, Vec<String>) {
    let result = caught(work);
    (result, take_panics())
}

fn caught<T>(work: impl Fn() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(message(panic.as_ref())))
}

fn take_panics() -> Vec<String> {
    std::mem::take(&mut PANICS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The cause first: what reaches the caller is often only that the library's thread gave no answer.
fn join(error: String, panics: &[String]) -> String {
    let causes = panics.iter().filter(|panic| !error.contains(*panic)).cloned();
    causes.chain([error.clone()]).collect::<Vec<_>>().join("; ")
}

/// One line of bounded length, without backtraces.
fn text(message: &str) -> String {
    let lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut line = lines.collect::<Vec<_>>().join(" ");
    line.truncate(line.floor_char_boundary(MAX_TEXT));
    line
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(test)]
#[path = "failure/like_cubecl.rs"]
mod tests;
