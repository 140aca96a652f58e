//! What the page's script calls. WebAssembly passes numbers only, so texts pass through memory: the script
//! asks for the address of the input, writes it there, runs, and reads the output where it is said to be.
//!
//! After a panic the module is of no more use, but its memory still holds the message as the output.
#![expect(
    unsafe_code,
    reason = "a name that the script can call is an unsafe attribute; nothing else here is unsafe"
)]

use std::sync::{Mutex, MutexGuard, PoisonError};

static INPUT: Mutex<Vec<u8>> = Mutex::new(Vec::new());
static OUTPUT: Mutex<String> = Mutex::new(String::new());

#[link(wasm_import_module = "page")]
unsafe extern "C" {
    /// Tells the page which part of the run is over, 0 to 1.
    safe fn progress(part: f64);
}

fn lock<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the scenario's text of `length` bytes is to be written.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn input(length: usize) -> *mut u8 {
    let mut input = lock(&INPUT);
    input.clear();
    input.resize(length, 0);
    input.as_mut_ptr()
}

/// Runs it with this seed. 0: the output is a document; 1: it is an error's text.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn run(seed: u64) -> u32 {
    std::panic::set_hook(Box::new(|panic| *lock(&OUTPUT) = panic.to_string()));
    let input = std::mem::take(&mut *lock(&INPUT));
    let outcome = crate::run(&String::from_utf8_lossy(&input), seed, &mut |part| progress(part));
    let is_error = u32::from(outcome.is_err());
    *lock(&OUTPUT) = outcome.unwrap_or_else(|error| error.to_string());
    is_error
}

/// Where the output begins.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn output() -> *const u8 {
    lock(&OUTPUT).as_ptr()
}

/// How many bytes it has, UTF-8.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn output_length() -> usize {
    lock(&OUTPUT).len()
}
