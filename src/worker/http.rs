//! Metrics and health over HTTP/1.1: `/metrics`, `/healthz`, `/readyz`. GET and HEAD only, no state.
//!
//! Runs on the control thread: a scrape copies the counters under their lock and formats them outside it,
//! so it costs the drafting thread no more than a STATS request does.
//!
//! `/healthz` is 200 while the process answers. `/readyz` is 200 while drafting makes progress as
//! [`progress`] defines it, else 503 and the reason.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::metrics;
use super::progress::{STALL, progress};
use super::stats::SharedStats;
use crate::transport::listener::Accepting;

/// Clients served at once; further ones wait in the kernel.
const CLIENTS_MAX: usize = 8;
/// The head of a request must be complete within this time.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// A connection lives no longer than this, busy or not; scrapers reconnect.
const CONNECTION_TIME: Duration = Duration::from_secs(60);
/// Bytes of a request's head: the smallest buffer the parser takes.
const HEAD_BYTES_MAX: usize = 8192;
/// Header lines of a request.
const HEADERS_MAX: usize = 64;

/// Serves clients until dropped. Needs a [`LocalSet`](tokio::task::LocalSet).
pub async fn serve(listener: Accepting, stats: SharedStats) {
    let seats = Arc::new(Semaphore::new(CLIENTS_MAX));
    loop {
        let Ok(seat) = seats.clone().acquire_owned().await else { return };
        let (stream, peer) = listener.next_stream().await;
        let stats = stats.clone();
        spawn_local(async move {
            if let Err(error) = client(stream, stats).await {
                tracing::debug!(%peer, error, "HTTP client closed");
            }
            drop(seat);
        });
    }
}

async fn client(stream: TcpStream, stats: SharedStats) -> Result<(), String> {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = answer(request.method(), request.uri().path(), &stats);
        async move { Ok::<_, Infallible>(response) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service);
    timeout(CONNECTION_TIME, serving)
        .await
        .map_err(|_| "too long".to_owned())?
        .map_err(|error| error.to_string())
}

/// The response to one request. hyper leaves the body of a HEAD response out.
fn answer(method: &Method, path: &str, stats: &SharedStats) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut response = page(StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET or HEAD\n".into());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/metrics" => {
            let text = metrics::openmetrics(&stats.snapshot().measured().to_json());
            page(StatusCode::OK, metrics::CONTENT_TYPE, text)
        }
        "/healthz" => page(StatusCode::OK, TEXT, "ok\n".into()),
        "/readyz" => match progress(&stats.snapshot().to_json(), STALL, false) {
            Ok(()) => page(StatusCode::OK, TEXT, "ready\n".into()),
            Err(stall) => page(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{stall}\n")),
        },
        _ => page(StatusCode::NOT_FOUND, TEXT, "/metrics /healthz /readyz\n".into()),
    }
}

fn page(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
