//! A piece of a sweep: some of its runs, one after the other.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bentpipe_sim::columns::Value;
use bentpipe_sim::manifest::State;
use bentpipe_sim::sweep::Plan;
use bentpipe_sim::tables::ResultTable;
use bentpipe_sim::{Observer, run};
use bentpipe_units::Time;
use pyo3::prelude::*;

use crate::errors;
use crate::simulate::name_of;
use crate::table::{Rows, Table};

/// The columns of a sweep's table in front of those of its results.
const NUMBERS: [&str; 2] = ["run", "point"];
const SEED: &str = "seed";

/// No rows, with the columns of a sweep's table.
pub(crate) fn rows_of(plan: &Plan, table: ResultTable) -> Rows {
    let labels: Vec<String> = plan.points()[0].labels.iter().map(|label| label.key.clone()).collect();
    Rows::behind(&NUMBERS, SEED, &labels, table.schema())
}

/// Some runs that one thread has done.
pub(crate) struct Piece {
    /// The numbers of those that were done, from 0 on, in order: all, unless it was stopped.
    pub(crate) numbers: Vec<usize>,
    pub(crate) states: Vec<&'static str>,
    pub(crate) table: PyResult<Table>,
}

impl Piece {
    pub(crate) fn run(
        plan: &Plan,
        mut numbers: Vec<usize>,
        table: ResultTable,
        stop: &AtomicBool,
        done: &AtomicUsize,
    ) -> Self {
        let mut rows = rows_of(plan, table);
        let mut states = Vec::with_capacity(numbers.len());
        for &number in &numbers {
            let job = match plan.job(number) {
                Ok(job) => job,
                Err(error) => return Self { numbers, states, table: Err(errors::of_file(&error)) },
            };
            let result = run(&job.scenario, job.seed, &mut Stop(stop));
            if stop.load(Ordering::Relaxed) {
                break;
            }
            states.push(name_of(State::of(&job.scenario, &result)));
            let point = (number / plan.seeds().len()) as u64 + 1;
            let labels = job.point.labels.iter().map(|label| Value::Text(&label.value));
            let front = [number as u64 + 1, point, job.seed].map(Value::Count);
            table.rows(&job.scenario, &result, |row| {
                rows.push(front.into_iter().chain(labels.clone()).chain(row.iter().copied()));
            });
            done.fetch_add(1, Ordering::Relaxed);
        }
        numbers.truncate(states.len());
        Self { numbers, states, table: Ok(rows.finish()) }
    }
}

/// Ends a run when all are to end.
struct Stop<'a>(&'a AtomicBool);

impl Observer for Stop<'_> {
    fn progress(&mut self, _: Time) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}
