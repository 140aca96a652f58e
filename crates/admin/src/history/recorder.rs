//! The history of a running daemon: recorded once a second, and read over HTTP.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Json, Router};
use bentpipe_http::Failure;
use serde::Deserialize;
use tokio::time::{MissedTickBehavior, interval};

use crate::view::View;

use super::{History, HistoryAnswer, Observation, SavedHistory, Step};

/// A history that several threads share. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Recorder(Arc<Mutex<History>>);

/// `GET /history?since=UNIX_S&step=1|60`: a [`HistoryAnswer`](super::HistoryAnswer).
pub fn routes(recorder: Recorder) -> Router {
    Router::new().route("/history", get(history)).with_state(recorder)
}

impl Recorder {
    /// Continues the history of another process.
    pub fn restore(saved: &SavedHistory) -> Self {
        Self(Arc::new(Mutex::new(History::restore(saved))))
    }

    /// Everything, for the next process.
    pub fn save(&self) -> SavedHistory {
        self.history().save()
    }

    /// Records an observation now.
    pub fn record(&self, look: &Observation<'_>) {
        self.history().record(unix_s(), look);
    }

    /// Records the daemon once a second until the task is dropped.
    pub async fn run(self, view: Arc<dyn View>) {
        let mut ticks = interval(Duration::from_secs(1));
        // Missed ticks are skipped after a pause of this process.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            let (legs, gain, flows) = (view.legs(), view.gain(), view.stats().flows_open);
            self.record(&Observation { legs: &legs, gain: &gain, flows });
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        // A panic leaves only complete samples.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryQuery {
    #[serde(default)]
    since: u64,
    #[serde(default = "one")]
    step: u64,
}

fn one() -> u64 {
    1
}

async fn history(
    State(recorder): State<Recorder>,
    query: Result<Query<HistoryQuery>, QueryRejection>,
) -> Result<Json<HistoryAnswer>, Failure> {
    let Query(query) = query?;
    let step = match query.step {
        1 => Step::Second,
        60 => Step::Minute,
        other => {
            let text = format!("step={other}: the history has samples of 1 and of 60 seconds");
            return Err(Failure::bad_request(text));
        }
    };
    // Copying holds the lock, writing JSON does not.
    Ok(Json(recorder.history().since(unix_s(), query.since, step)))
}

/// The host's clock, seconds since 1970.
fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
