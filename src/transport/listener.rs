//! A listening TCP socket of which the newest pending connection wins (contract §7.5).

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::TcpStream;

use super::connection::Connection;
use super::repeats::Repeats;

/// Connections that may wait in the kernel between two looks of the worker.
const BACKLOG: i32 = 128;
/// A dead peer is noticed after about 11 s of silence: 5 s, then three probes 2 s apart.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);
/// Unacknowledged data may wait this long before the connection counts as dead.
const USER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A bound, listening socket that is not yet served.
///
/// SO_REUSEADDR, so that a restart within seconds listens again; never SO_REUSEPORT, so that a second
/// instance cannot steal the port.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    local: SocketAddr,
}

/// Why an address is not listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// All interfaces at once: the port has no authentication.
    #[error("{0} would listen on every interface; name one address")]
    Wildcard(SocketAddr),
    /// Not an address a client can connect to.
    #[error("{0} is not an address of one host")]
    NotUnicast(SocketAddr),
    /// Somebody listens there already.
    #[error("{0} is in use")]
    InUse(SocketAddr),
    /// Anything else the operating system says.
    #[error("{address}: {source}")]
    Io {
        /// The address.
        address: SocketAddr,
        /// What it says.
        source: io::Error,
    },
}

impl ListenError {
    /// Whether no interface has the address: a link that is not up yet.
    pub fn is_not_here_yet(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == ErrorKind::AddrNotAvailable)
    }
}

impl Listener {
    /// Whether [`bind`](Self::bind) takes the address, without opening a socket.
    ///
    /// # Errors
    /// A wildcard, multicast or broadcast address.
    pub fn check(address: SocketAddr) -> Result<(), ListenError> {
        check_address(address)
    }

    /// Binds and listens.
    ///
    /// # Errors
    /// A wildcard, multicast or broadcast address is refused before a socket is opened; else what the
    /// operating system says.
    pub fn bind(address: SocketAddr) -> Result<Self, ListenError> {
        check_address(address)?;
        let io = |source: io::Error| match source.kind() {
            ErrorKind::AddrInUse => ListenError::InUse(address),
            _ => ListenError::Io { address, source },
        };
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
            .map_err(io)?;
        socket.set_reuse_address(true).map_err(io)?;
        socket.bind(&address.into()).map_err(io)?;
        socket.listen(BACKLOG).map_err(io)?;
        socket.set_nonblocking(true).map_err(io)?;
        let socket = TcpListener::from(socket);
        let local = socket.local_addr().map_err(io)?;
        Ok(Self { socket, local })
    }

    /// Takes over a socket that listens already.
    ///
    /// # Errors
    /// As [`bind`](Self::bind): the address must be one that it would take.
    pub fn adopt(socket: TcpListener) -> Result<Self, ListenError> {
        let unknown = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let io = |address, source| ListenError::Io { address, source };
        let local = socket.local_addr().map_err(|source| io(unknown, source))?;
        check_address(local)?;
        socket.set_nonblocking(true).map_err(|source| io(local, source))?;
        Ok(Self { socket, local })
    }

    /// The bound address, with the port the system chose for port 0.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Hands the socket to the current tokio runtime.
    ///
    /// # Errors
    /// When the runtime cannot watch the socket.
    pub fn serve(self) -> io::Result<Accepting> {
        let queue = self.socket.try_clone()?;
        let socket = tokio::net::TcpListener::from_std(self.socket)?;
        Ok(Accepting { socket, queue, admits: Box::new(|_| true), failures: Repeats::default() })
    }
}

/// The connection to serve.
#[derive(Debug)]
pub struct Newest {
    /// The newest of those that were waiting.
    pub connection: Connection,
    /// How many older ones were accepted and closed for it.
    pub passed_over: u64,
}

/// A listener watched by a runtime.
pub struct Accepting {
    socket: tokio::net::TcpListener,
    /// The same socket, for looks that do not go through the runtime.
    queue: TcpListener,
    /// Whether a peer may connect; others are closed at accept.
    admits: Box<dyn Fn(SocketAddr) -> bool + Send>,
    failures: Repeats,
}

impl Accepting {
    /// Closes connections of peers that `admits` refuses as soon as they are accepted: they displace nobody
    /// and are never returned.
    pub fn admit(self, admits: impl Fn(SocketAddr) -> bool + Send + 'static) -> Self {
        Self { admits: Box::new(admits), ..self }
    }

    /// Waits for a connection. Of several pending ones the newest is returned and the others are closed.
    /// Dropping the future loses nothing.
    pub async fn newest(&self) -> Newest {
        let first = self.next().await;
        match self.pending() {
            None => Newest { connection: first, passed_over: 0 },
            Some(newer) => Newest { passed_over: newer.passed_over + 1, ..newer },
        }
    }

    /// Waits for the next connection, oldest first.
    pub async fn next(&self) -> Connection {
        let (stream, peer) = self.next_stream().await;
        Connection::new(stream, peer)
    }

    /// As [`next`](Self::next), without the framing of this protocol.
    pub async fn next_stream(&self) -> (TcpStream, SocketAddr) {
        loop {
            match self.socket.accept().await {
                Ok((_, peer)) if !(self.admits)(peer) => {}
                Ok((stream, peer)) => match prepare(&stream) {
                    Ok(()) => return (stream, peer),
                    Err(error) => tracing::debug!(%error, %peer, "connection lost at accept"),
                },
                Err(error) => {
                    // Out of descriptors, say: the connection waits in the kernel meanwhile.
                    if let Some(unsaid) = self.failures.pass(Instant::now()) {
                        tracing::warn!(%error, unsaid, "accept failed");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// The newest connection that is waiting right now; asks the kernel, not the runtime, so it may be
    /// called without having yielded (contract-notes D11).
    pub fn pending(&self) -> Option<Newest> {
        let mut newest: Option<Newest> = None;
        // At most a backlog's worth, so that a flood of connections cannot hold the drafting thread.
        for _ in 0..BACKLOG {
            match self.queue.accept() {
                Ok((_, peer)) if !(self.admits)(peer) => {}
                Ok((stream, peer)) => match adopt(stream, peer) {
                    Ok(connection) => {
                        let passed_over = newest.map_or(0, |older| older.passed_over + 1);
                        newest = Some(Newest { connection, passed_over });
                    }
                    Err(error) => tracing::debug!(%error, %peer, "connection lost at accept"),
                },
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => {}
                Err(_) => break, // nobody waits, or the runtime's accept will report it
            }
        }
        newest
    }
}

fn adopt(stream: std::net::TcpStream, peer: SocketAddr) -> io::Result<Connection> {
    stream.set_nonblocking(true)?;
    prepare(&stream)?;
    Ok(Connection::new(TcpStream::from_std(stream)?, peer))
}

fn prepare(stream: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(stream);
    // Nagle against delayed ACK costs 40 ms, nearly a whole round's deadline.
    socket.set_tcp_nodelay(true)?;
    let (time, interval, retries) = KEEPALIVE;
    let keepalive =
        TcpKeepalive::new().with_time(time).with_interval(interval).with_retries(retries);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))
}

fn check_address(address: SocketAddr) -> Result<(), ListenError> {
    let ip = address.ip().to_canonical();
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    if ip.is_unspecified() {
        Err(ListenError::Wildcard(address))
    } else if ip.is_multicast() || broadcast {
        Err(ListenError::NotUnicast(address))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_multicast_and_broadcast_are_refused_before_a_socket_is_opened() {
        for text in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"] {
            let result = Listener::bind(text.parse().unwrap());
            assert!(matches!(result, Err(ListenError::Wildcard(_))), "{text}");
        }
        for text in ["224.0.0.1:0", "255.255.255.255:0", "[ff02::1]:0"] {
            let result = Listener::bind(text.parse().unwrap());
            assert!(matches!(result, Err(ListenError::NotUnicast(_))), "{text}");
        }
    }

    #[test]
    fn a_second_listener_on_a_port_says_in_use() {
        let first = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        assert!(matches!(Listener::bind(first.local()), Err(ListenError::InUse(_))));
    }
}
