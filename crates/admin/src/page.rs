//! The live page: a few files that are part of the program.
//!
//! It is a view of `GET /status` and `GET /history` and takes nothing from anywhere else: no library, no
//! font, no picture. Its script and its style are files of their own, so that a policy without exceptions
//! holds.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

/// What a browser may load for the page: nothing but what comes from this daemon, and nothing
/// that is written into the page.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const SCRIPTS: [(&str, &str); 9] = [
    ("/page.js", include_str!("../assets/page.js")),
    ("/charts.js", include_str!("../assets/charts.js")),
    ("/flows.js", include_str!("../assets/flows.js")),
    ("/format.js", include_str!("../assets/format.js")),
    ("/history.js", include_str!("../assets/history.js")),
    ("/legs.js", include_str!("../assets/legs.js")),
    ("/names.js", include_str!("../assets/names.js")),
    ("/node.js", include_str!("../assets/node.js")),
    ("/policy.js", include_str!("../assets/policy.js")),
];

/// `GET /`, its style, its icon and its scripts.
pub fn routes() -> Router {
    let page = Router::new()
        .route("/", file("text/html; charset=utf-8", include_str!("../assets/page.html")))
        .route("/page.css", file("text/css; charset=utf-8", include_str!("../assets/page.css")))
        .route("/icon.svg", file("image/svg+xml", include_str!("../assets/icon.svg")));
    let script =
        |router: Router, (path, text)| router.route(path, file("text/javascript; charset=utf-8", text));
    SCRIPTS.into_iter().fold(page, script)
}

fn file(kind: &'static str, text: &'static str) -> axum::routing::MethodRouter {
    get(move || async move {
        let headers = [
            (header::CONTENT_TYPE, kind),
            (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            // Another version of the program has other files under the same names.
            (header::CACHE_CONTROL, "no-store"),
        ];
        (headers, text).into_response()
    })
}
