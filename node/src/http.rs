//! The agent's small HTTP server: `/healthz` for supervisors and load balancers, `/metrics` for Prometheus. It
//! carries no orders and changes nothing. Everything but liveness needs a token (fault S1); the operator may open
//! `/metrics` to callers from loopback.
//!
//! A route exists only through [`Route`], which cannot be written without saying who may use it.

use crate::meters::Meters;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use axum::{Json, Router};
use serde_json::json;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

mod capped;
mod token;

pub use token::{MetricsToken, TokenError};

/// Where the server listens unless told otherwise: this host alone.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:7421";
/// HTTP requests. Labels `route` (or `other`) and `status`.
pub const REQUESTS: &str = "rota_http_requests_total";

/// What `/healthz` answers from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// This peer knows a leader: it can accept jobs.
    pub leader_known: bool,
    /// Last log index applied here.
    pub applied: u64,
}

/// What the server needs.
#[derive(Clone)]
pub struct HttpState {
    /// The recorded metrics.
    pub meters: Meters,
    /// Asked at each `/healthz`; must not block.
    pub health: Arc<dyn Fn() -> Health + Send + Sync>,
    /// The series of jobs, asked at each `/metrics`; must not block.
    pub jobs: Arc<dyn Fn() -> String + Send + Sync>,
    /// What callers of `/metrics` must show.
    pub token: MetricsToken,
    /// Whether callers from loopback need not show it.
    pub metrics_open_on_loopback: bool,
}

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anyone: liveness, and nothing that tells of jobs or users.
    Anyone,
    /// Bearers of the metrics token, and loopback where the operator says so.
    Metrics,
}

/// One route: nothing is served that is not in [`ROUTES`].
#[derive(Clone, Copy)]
pub struct Route {
    /// Its exact path.
    pub path: &'static str,
    /// Who may use it.
    pub access: Access,
    answer: fn(&HttpState) -> Response,
}

/// All routes. GET only.
pub const ROUTES: [Route; 2] = [
    Route { path: "/healthz", access: Access::Anyone, answer: healthz },
    Route { path: "/metrics", access: Access::Metrics, answer: metrics_text },
];

/// Serves until `stop` completes; connections then end with their current request.
///
/// # Errors
/// When the listener fails for good.
pub async fn serve(
    listener: TcpListener,
    state: HttpState,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let router = Router::new().fallback(answer).with_state(state);
    axum::serve(capped::Capped::new(listener), router.into_make_service_with_connect_info::<Peer>())
        .with_graceful_shutdown(stop)
        .await
}

/// The caller's address.
#[derive(Debug, Clone, Copy)]
struct Peer(SocketAddr);

impl Connected<IncomingStream<'_, capped::Capped>> for Peer {
    fn connect_info(stream: IncomingStream<'_, capped::Capped>) -> Self {
        Self(*stream.remote_addr())
    }
}

async fn answer(
    State(state): State<HttpState>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
) -> Response {
    let route = ROUTES.iter().find(|route| route.path == request.uri().path());
    let response = match route {
        None => refusal(StatusCode::NOT_FOUND, "no such page"),
        Some(route) if !may_use(route, &state, peer, request.headers()) => {
            let mut response = refusal(StatusCode::UNAUTHORIZED, "a token is needed");
            let scheme = header::HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
            response
        }
        Some(_) if request.method() != axum::http::Method::GET => {
            refusal(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered")
        }
        Some(route) => (route.answer)(&state),
    };
    let (route, status) = (route.map_or("other", |route| route.path), response.status());
    metrics::counter!(REQUESTS, "route" => route, "status" => status.as_str().to_owned()).increment(1);
    response
}

fn may_use(route: &Route, state: &HttpState, peer: Peer, headers: &HeaderMap) -> bool {
    match route.access {
        Access::Anyone => true,
        Access::Metrics => {
            let local = state.metrics_open_on_loopback && peer.0.ip().to_canonical().is_loopback();
            local || bearer(headers).is_some_and(|shown| state.token.is(shown))
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn healthz(state: &HttpState) -> Response {
    let Health { leader_known, applied } = (state.health)();
    let status = if leader_known { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({ "alive": true, "leader_known": leader_known, "applied": applied });
    (status, Json(body)).into_response()
}

fn metrics_text(state: &HttpState) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, state.meters.render() + &(state.jobs)()).into_response()
}

fn refusal(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({ "error": message }))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    struct Server {
        addr: SocketAddr,
        token: String,
        leader_known: Arc<AtomicBool>,
        _dir: tempfile::TempDir,
    }

    async fn server(open_on_loopback: bool) -> Server {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let token = MetricsToken::open(dir.path()).expect("creatable");
        let text = std::fs::read_to_string(dir.path().join("metrics-token")).expect("readable");
        let (_, meters) = Meters::local().expect("fair buckets");
        let leader_known = Arc::new(AtomicBool::new(true));
        let known = Arc::clone(&leader_known);
        let state = HttpState {
            meters,
            jobs: Arc::new(String::new),
            health: Arc::new(move || Health { leader_known: known.load(Ordering::Relaxed), applied: 7 }),
            token,
            metrics_open_on_loopback: open_on_loopback,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let addr = listener.local_addr().expect("bound");
        tokio::spawn(serve(listener, state, std::future::pending()));
        Server { addr, token: text.trim().to_owned(), leader_known, _dir: dir }
    }

    async fn ask(server: &Server, method: &str, path: &str, header: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(server.addr).await.expect("it listens");
        let request = format!("{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{header}\r\n");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers");
        let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        (status, answer)
    }

    #[tokio::test]
    async fn without_credentials_only_liveness_answers() {
        let server = server(false).await;
        for route in ROUTES {
            for method in ["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"] {
                let (status, _) = ask(&server, method, route.path, "").await;
                let expected = match (route.access, method) {
                    (Access::Anyone, "GET") => 200,
                    (Access::Anyone, _) => 405,
                    (Access::Metrics, _) => 401,
                };
                assert_eq!(status, expected, "{method} {}", route.path);
            }
        }
        let open: Vec<_> = ROUTES.iter().filter(|r| r.access == Access::Anyone).map(|r| r.path).collect();
        assert_eq!(open, ["/healthz"], "a new open route is a decision, not a slip");
    }

    #[tokio::test]
    async fn the_token_opens_metrics_and_nothing_like_it_does() {
        let server = server(false).await;
        let (status, body) =
            ask(&server, "GET", "/metrics", &format!("Authorization: Bearer {}\r\n", server.token)).await;
        assert_eq!(status, 200);
        assert!(body.contains("rota_build_info"), "{body}");
        let short = &server.token[..server.token.len() - 1];
        for wrong in [
            String::new(),
            "Authorization: Bearer \r\n".into(),
            format!("Authorization: Bearer {short}\r\n"),
            format!("Authorization: Bearer {}0\r\n", server.token),
            format!("Authorization: Basic {}\r\n", server.token),
            format!("Authorization: {}\r\n", server.token),
            format!("Cookie: {}\r\n", server.token),
        ] {
            let (status, answer) = ask(&server, "GET", "/metrics", &wrong).await;
            assert_eq!(status, 401, "{wrong}");
            assert!(!answer.contains(&server.token));
        }
    }

    #[tokio::test]
    async fn loopback_needs_no_token_only_where_the_operator_says_so() {
        let open = server(true).await;
        assert_eq!(ask(&open, "GET", "/metrics", "").await.0, 200);
    }

    #[tokio::test]
    async fn health_follows_the_leader() {
        let server = server(false).await;
        server.leader_known.store(false, Ordering::Relaxed);
        let (status, body) = ask(&server, "GET", "/healthz", "").await;
        assert_eq!(status, 503);
        assert!(body.contains("\"leader_known\":false"), "{body}");
        server.leader_known.store(true, Ordering::Relaxed);
        assert_eq!(ask(&server, "GET", "/healthz", "").await.0, 200);
    }

    #[tokio::test]
    async fn other_paths_are_refused_in_json() {
        let server = server(true).await;
        for path in ["/", "/metrics/", "/METRICS", "/healthz/x", "//metrics", "/../metrics", "/%6detrics"] {
            let (status, body) = ask(&server, "GET", path, "").await;
            assert_eq!(status, 404, "{path}");
            assert!(body.contains("application/json") && body.contains("no such page"), "{body}");
        }
    }
}
