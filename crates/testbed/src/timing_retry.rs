//! Claims about time on a machine that others share.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

const ATTEMPTS: usize = 3;
/// Processor time in a second of ours, all processors together, that others may have before nothing can be said of ours.
const MOST: f64 = 0.05;

/// For tests: runs a claim about time, a goodput, say, up to three times, until it holds. If it never does, it panics as the last attempt
/// did that had the processors. Where the host gave them to others in every attempt, an emulated link stands still with the machine, and
/// nothing has been shown: it says so, and returns.
///
/// # Panics
/// The claim does not hold.
pub fn with_timing_retries(claim: impl Fn()) {
    let mut refuted = None;
    for _ in 0..ATTEMPTS {
        let (begun, before) = (Instant::now(), stolen());
        let Err(panic) = catch_unwind(AssertUnwindSafe(&claim)) else { return };
        let share = (stolen() - before) / begun.elapsed().as_secs_f64();
        println!("the host had {:.0}% of a processor for others", 100.0 * share);
        if share < MOST {
            refuted = Some(panic);
        }
    }
    match refuted {
        Some(panic) => resume_unwind(panic),
        // Not by `println!`, which is heard of only where a test fails.
        None => drop(writeln!(std::io::stderr(), "not judged: this machine had not the time")),
    }
}

/// Seconds of all processors that the host has given to others (`steal` in proc_stat(5)); zero on a machine of our own.
fn stolen() -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let steal = text.split_whitespace().nth(8).and_then(|ticks| ticks.parse::<f64>().ok());
    steal.unwrap_or(0.0) / TICKS_PER_SECOND
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_claim_that_holds_at_last_holds() {
        let attempts = Cell::new(0);
        with_timing_retries(|| {
            attempts.set(attempts.get() + 1);
            assert!(attempts.get() == 3);
        });
        assert_eq!(attempts.get(), 3);
    }

    #[test]
    fn a_claim_that_never_holds_is_refuted_unless_the_machine_was_away_each_time() {
        let before = stolen();
        let attempts = Cell::new(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            with_timing_retries(|| {
                attempts.set(attempts.get() + 1);
                panic!("never");
            });
        }));
        assert_eq!(attempts.get(), 3);
        assert!(outcome.is_err() || stolen() > before);
    }
}
