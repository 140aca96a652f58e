//! The request to read the configuration again.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use bentpipe_http::Failure;
use serde::{Deserialize, Serialize};

/// What has become of a configuration that was read again, and is in force.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReloadReport {
    /// The keys whose values have changed.
    pub changed: Vec<String>,
    /// Those that have changed in the file, and keep their old values until a restart.
    pub needs_restart: Vec<String>,
    /// What is accepted, but hardly meant; a line each.
    pub warnings: Vec<String>,
}

/// Reads the configuration again and puts it in force; blocks on the disk. The error says why nothing has
/// changed.
pub type Reload = Arc<dyn Fn() -> Result<ReloadReport, String> + Send + Sync>;

/// `POST /reload`.
pub fn reload_router(reload: Reload) -> Router {
    Router::new().route("/reload", post(answer)).with_state(reload)
}

async fn answer(State(reload): State<Reload>) -> Result<Json<ReloadReport>, Failure> {
    let reloaded = tokio::task::block_in_place(|| reload());
    reloaded.map(Json).map_err(|error| Failure::new(StatusCode::CONFLICT, error))
}
