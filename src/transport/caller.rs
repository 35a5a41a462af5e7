//! The client's end: one request, one reply, one deadline for both (contract §7.5).

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::PREFIX_BYTES;
use super::endpoint::{Endpoint, Scheme};
use crate::geometry::REPLY_BYTES_MAX;
use crate::protocol::HEADER_BYTES;

/// A connected client. Any error leaves it broken for good, with the socket shut down, so that a late
/// reply is never seen: the client reconnects and resyncs.
#[derive(Debug)]
pub struct Caller {
    stream: TcpStream,
    peer: SocketAddr,
    reply: Vec<u8>,
    broken: bool,
}

/// Why a call brought no reply.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The transport is not part of this program.
    #[error("{}:// is not in this build; use tcp://", .0.name())]
    NotBuilt(Scheme),
    /// No connection.
    #[error("connect to {endpoint}: {source}")]
    Connect {
        /// Where to.
        endpoint: Endpoint,
        /// What the operating system says.
        source: io::Error,
    },
    /// The deadline passed.
    #[error("no reply within the deadline")]
    TimedOut,
    /// The worker closed the connection.
    #[error("the worker closed the connection")]
    Closed,
    /// A reply shorter than a header or longer than 64 KiB.
    #[error("reply length {0} is not in 32 ..= 65536")]
    Length(u32),
    /// An earlier call failed.
    #[error("the connection is broken")]
    Broken,
    /// The connection failed.
    #[error("connection failed: {0}")]
    Io(io::Error),
}

impl Caller {
    /// Connects until `deadline`, from `bind` if the endpoint names it, trying every address of the host.
    ///
    /// # Errors
    /// [`CallError::NotBuilt`], or the last address' [`CallError::Connect`].
    pub fn connect(endpoint: &Endpoint, deadline: Instant) -> Result<Self, CallError> {
        if endpoint.scheme != Scheme::Tcp {
            return Err(CallError::NotBuilt(endpoint.scheme));
        }
        let failed = |source| CallError::Connect { endpoint: endpoint.clone(), source };
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in endpoint.resolve().map_err(failed)? {
            match connect_one(endpoint, address, deadline) {
                Ok(stream) => {
                    let reply = Vec::with_capacity(REPLY_BYTES_MAX);
                    return Ok(Self { stream, peer: address, reply, broken: false });
                }
                Err(e) => last = e,
            }
        }
        Err(failed(last))
    }

    /// Address of the worker.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Sends a message given in parts and waits for the reply message.
    ///
    /// # Errors
    /// After any error the connection is broken.
    pub fn call(&mut self, parts: &[&[u8]], deadline: Instant) -> Result<&[u8], CallError> {
        self.send(parts, deadline)?;
        self.receive(deadline)
    }

    /// Sends a message given in parts. Each one is answered by one reply, in order.
    ///
    /// # Errors
    /// After any error the connection is broken.
    pub fn send(&mut self, parts: &[&[u8]], deadline: Instant) -> Result<(), CallError> {
        let sent = self.usable().and_then(|()| self.write(parts, deadline));
        self.broken_by(sent)
    }

    /// Waits for the next reply message.
    ///
    /// # Errors
    /// After any error the connection is broken.
    pub fn receive(&mut self, deadline: Instant) -> Result<&[u8], CallError> {
        let read = self.usable().and_then(|()| self.read(deadline));
        self.broken_by(read)?;
        Ok(&self.reply)
    }

    /// Says that nothing more will be sent; replies can still be received.
    ///
    /// # Errors
    /// After any error the connection is broken.
    pub fn end_sending(&mut self) -> Result<(), CallError> {
        let ended = self.stream.shutdown(Shutdown::Write).map_err(CallError::Io);
        self.broken_by(ended)
    }

    /// Ends the connection.
    pub fn close(&mut self) {
        self.broken = true;
        // Already closed by the peer is as good.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn usable(&self) -> Result<(), CallError> {
        if self.broken { Err(CallError::Broken) } else { Ok(()) }
    }

    fn broken_by<T>(&mut self, result: Result<T, CallError>) -> Result<T, CallError> {
        if result.is_err() {
            self.close();
        }
        result
    }

    fn read(&mut self, deadline: Instant) -> Result<(), CallError> {
        let mut prefix = [0; PREFIX_BYTES];
        self.fill(&mut prefix, deadline)?;
        let len = u32::from_le_bytes(prefix);
        let fits = (HEADER_BYTES..=REPLY_BYTES_MAX).contains(&(len as usize));
        if !fits {
            return Err(CallError::Length(len));
        }
        let mut reply = std::mem::take(&mut self.reply);
        reply.resize(len as usize, 0);
        let result = self.fill(&mut reply, deadline);
        self.reply = reply;
        result
    }

    fn write(&mut self, parts: &[&[u8]], deadline: Instant) -> Result<(), CallError> {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        let prefix = u32::try_from(len).map_err(|_| CallError::Length(u32::MAX))?.to_le_bytes();
        let mut slices = Vec::with_capacity(parts.len() + 1);
        slices.push(IoSlice::new(&prefix));
        slices.extend(parts.iter().map(|p| IoSlice::new(p)));
        let mut left = &mut slices[..];
        while !left.is_empty() {
            self.stream.set_write_timeout(Some(remaining(deadline)?)).map_err(CallError::Io)?;
            match self.stream.write_vectored(left) {
                Ok(0) => return Err(CallError::Closed),
                Ok(n) => IoSlice::advance_slices(&mut left, n),
                Err(e) => check(e)?,
            }
        }
        Ok(())
    }

    fn fill(&mut self, mut buffer: &mut [u8], deadline: Instant) -> Result<(), CallError> {
        while !buffer.is_empty() {
            self.stream.set_read_timeout(Some(remaining(deadline)?)).map_err(CallError::Io)?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(CallError::Closed),
                Ok(n) => buffer = &mut buffer[n..],
                Err(e) => check(e)?,
            }
        }
        Ok(())
    }
}

fn connect_one(
    endpoint: &Endpoint,
    address: SocketAddr,
    deadline: Instant,
) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(bind) = endpoint.bind {
        socket.bind(&SocketAddr::new(bind, 0).into())?;
    }
    let left = remaining(deadline).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
    socket.connect_timeout(&address.into(), left)?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket.into())
}

/// Time left, never zero: a zero timeout would mean "for ever" to the socket.
fn remaining(deadline: Instant) -> Result<Duration, CallError> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(CallError::TimedOut),
        left => Ok(left),
    }
}

/// Sorts an I/O error: interrupted is none, the others end the call.
fn check(e: io::Error) -> Result<(), CallError> {
    match e.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Err(CallError::TimedOut),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Err(CallError::Closed),
        _ => Err(CallError::Io(e)),
    }
}
