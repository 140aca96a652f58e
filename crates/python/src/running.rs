//! A sweep on all cores of this machine.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bentpipe_sim::sweep::Plan;
use bentpipe_sim::tables::ResultTable;
use pyo3::prelude::*;

use crate::piece::Piece;
use crate::table::Table;

/// A sweep that is being run.
#[pyclass(frozen, module = "bentpipe._core")]
pub(crate) struct Running {
    done: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    finished: Mutex<Receiver<Piece>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Runs that were done: their numbers, states and rows.
type Done = (Vec<usize>, Vec<&'static str>, Table);

impl Running {
    pub(crate) fn start(
        plan: Arc<Plan>,
        pieces: Vec<Vec<usize>>,
        table: ResultTable,
        threads: usize,
    ) -> Self {
        let (send, finished) = channel();
        let (done, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (pieces, next) = (Arc::new(pieces), Arc::new(AtomicUsize::new(0)));
        let work = || {
            let (plan, pieces, next) = (plan.clone(), pieces.clone(), next.clone());
            let (send, done, stop) = (send.clone(), done.clone(), stop.clone());
            std::thread::spawn(move || {
                // In the order of the pieces, so that those at the front are there first.
                while let Some(numbers) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let piece = Piece::run(&plan, numbers.clone(), table, &stop, &done);
                    if send.send(piece).is_err() {
                        return;
                    }
                }
            })
        };
        let threads = (0..threads.max(1)).map(|_| work()).collect();
        Self { done, stop, finished: Mutex::new(finished), threads: Mutex::new(threads) }
    }
}

#[pymethods]
impl Running {
    /// How many runs are done.
    #[getter]
    fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// The next piece that is done, in whatever order; `None` if there was none within `seconds`, or if there
    /// will be none any more: `is_over` tells.
    fn next(&self, py: Python<'_>, seconds: f64) -> PyResult<(Option<Done>, bool)> {
        let wait = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let received = py.detach(|| {
            let finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
            finished.recv_timeout(wait)
        });
        match received {
            Ok(Piece { numbers, states, table }) => Ok((Some((numbers, states, table?)), false)),
            Err(RecvTimeoutError::Timeout) => Ok((None, false)),
            Err(RecvTimeoutError::Disconnected) => Ok((None, true)),
        }
    }

    /// Ends all runs at once, and waits until the threads have ended. What is done comes by `next`.
    fn stop(&self, py: Python<'_>) {
        self.stop.store(true, Ordering::Relaxed);
        py.detach(|| {
            let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            // A thread that has panicked has said so.
            threads.drain(..).for_each(|thread| drop(thread.join()));
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
