//! The worker's end of one connection: whole request frames in, reply frames out.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::PREFIX_BYTES;
use crate::buffer::FrameBuffer;
use crate::protocol::HEADER_BYTES;

/// A frame that has begun may take this long, so that a half-dead peer is noticed. Between frames a
/// connection may be silent for ever (contract-notes D10).
pub const FRAME_TIME: Duration = Duration::from_secs(30);
/// A reply must be taken within this time: at most 64 KiB, it fits the send buffer of a reading peer.
pub const SEND_TIME: Duration = Duration::from_secs(1);

/// A connected client. Receiving keeps its progress here, so that it can be cancelled and resumed.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    prefix: [u8; PREFIX_BYTES],
    /// Bytes of the current frame read so far, prefix included.
    read: usize,
    /// When the first of them came.
    began: Option<Instant>,
    /// From the first byte of the last whole frame to its last.
    receiving: Duration,
}

/// Why no further frame comes from a connection.
#[derive(Debug, thiserror::Error)]
pub enum RecvError {
    /// A length below a header or above the limit: closed before anything is read (contract-notes D4).
    #[error("frame length {0} is not in 32 ..= {1}")]
    Length(u32, usize),
    /// The frame did not end in time.
    #[error("a frame was not complete after {} s", .0.as_secs())]
    Slow(Duration),
    /// The connection ended inside a frame; nothing of it is applied (contract-notes D9).
    #[error("the connection ended inside a frame")]
    Cut,
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Why a reply was not delivered.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The peer does not read.
    #[error("the reply was not taken within {} s", .0.as_secs())]
    Slow(Duration),
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Connection {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr) -> Self {
        Self {
            stream,
            peer,
            prefix: [0; PREFIX_BYTES],
            read: 0,
            began: None,
            receiving: Duration::ZERO,
        }
    }

    /// Address of the client.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// How long the last whole frame took from its first byte to its last: the link's share of a round that
    /// this end sees. A frame that waited in the kernel took no time.
    pub fn receiving(&self) -> Duration {
        self.receiving
    }

    /// Receives one whole frame into `buffer` and returns its length; `None` when the peer has closed
    /// between frames. A dropped call is resumed by the next one, with the same buffer.
    ///
    /// # Errors
    /// After an error the connection is of no further use.
    pub async fn recv(
        &mut self,
        buffer: &mut FrameBuffer,
        frame_time: Duration,
    ) -> Result<Option<usize>, RecvError> {
        loop {
            let len = self.frame_len(buffer.capacity())?;
            if len.is_some_and(|len| self.read == PREFIX_BYTES + len) {
                self.read = 0;
                self.receiving = self.began.take().map_or(Duration::ZERO, |began| began.elapsed());
                return Ok(len);
            }
            let got = match self.began {
                None => self.read_some(buffer, len).await?,
                Some(began) => timeout_at(began + frame_time, self.read_some(buffer, len))
                    .await
                    .map_err(|_| RecvError::Slow(frame_time))??,
            };
            match got {
                0 if self.read == 0 => return Ok(None),
                0 => return Err(RecvError::Cut),
                n => self.read += n,
            }
            self.began.get_or_insert_with(Instant::now);
        }
    }

    /// The announced length, once the prefix is there.
    fn frame_len(&self, capacity: usize) -> Result<Option<usize>, RecvError> {
        if self.read < PREFIX_BYTES {
            return Ok(None);
        }
        let len = u32::from_le_bytes(self.prefix);
        match usize::try_from(len) {
            Ok(n) if (HEADER_BYTES..=capacity).contains(&n) => Ok(Some(n)),
            _ => Err(RecvError::Length(len, capacity)),
        }
    }

    /// One read of the prefix, then of the frame where it belongs. Cancel-safe like the read it ends in.
    async fn read_some(
        &mut self,
        buffer: &mut FrameBuffer,
        len: Option<usize>,
    ) -> io::Result<usize> {
        let rest = match len {
            None => &mut self.prefix[self.read..],
            Some(len) => &mut buffer.frame_mut(len)[self.read - PREFIX_BYTES..],
        };
        self.stream.read(rest).await
    }

    /// Sends one reply frame.
    ///
    /// # Errors
    /// After an error the connection is of no further use.
    pub async fn send(&mut self, message: &[u8]) -> Result<(), SendError> {
        timeout(SEND_TIME, write_frame(&mut self.stream, message))
            .await
            .map_err(|_| SendError::Slow(SEND_TIME))??;
        Ok(())
    }
}

/// Length and message in one write.
async fn write_frame(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let len = u32::try_from(message.len()).expect("a reply is at most 64 KiB");
    let prefix = len.to_le_bytes();
    let mut parts = [IoSlice::new(&prefix), IoSlice::new(message)];
    let mut left = &mut parts[..];
    while !left.is_empty() {
        let n = stream.write_vectored(left).await?;
        if n == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut left, n);
    }
    Ok(())
}
