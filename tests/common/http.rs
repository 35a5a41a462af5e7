//! A plain HTTP/1.1 client: one request, one connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// What came back: status code, header lines, body.
pub(crate) struct Page {
    /// Status code.
    pub(crate) status: u16,
    /// Everything before the empty line.
    pub(crate) head: String,
    /// Everything behind it.
    pub(crate) body: String,
}

/// Sends raw bytes to `HOST:PORT` and reads to the end of the connection.
pub(crate) fn exchange(address: &str, request: &[u8]) -> Page {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
    stream.write_all(request).expect("send the request");
    let mut answer = Vec::new();
    // A refused head may be answered by a reset behind the response.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    Page { status, head: head.to_owned(), body: body.to_owned() }
}

/// One request without a body.
pub(crate) fn request(address: &str, method: &str, path: &str) -> Page {
    let text = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    exchange(address, text.as_bytes())
}

/// GET.
pub(crate) fn get(address: &str, path: &str) -> Page {
    request(address, "GET", path)
}
