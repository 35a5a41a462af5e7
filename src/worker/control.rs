//! The control listener: PING and STATS for any number of clients (contract-notes D1).
//!
//! It has no session and cannot touch the drafting one: whoever asks here disturbs nobody.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::stats::SharedStats;
use super::write_reply;
use crate::buffer::FrameBuffer;
use crate::protocol::{AppHeader, FrameStatus, HEADER_BYTES, Op};
use crate::session::{Refused, check_header};
use crate::transport::Connection;
use crate::transport::listener::Accepting;

/// Clients served at once; further ones wait in the kernel.
const CLIENTS_MAX: usize = 16;
/// A client's frame must be complete within this time, counted from its first byte.
const FRAME_TIME: Duration = Duration::from_secs(5);
/// A client that asks nothing for this long is closed; tools reconnect.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// No operation here has a body; a HELLO that went to the wrong port still gets its answer. Longer frames
/// close the connection.
const FRAME_BYTES_MAX: usize = HEADER_BYTES + 4096;

/// Serves clients until dropped. Needs a [`LocalSet`](tokio::task::LocalSet).
pub async fn serve(listener: Accepting, stats: SharedStats) {
    let seats = Arc::new(Semaphore::new(CLIENTS_MAX));
    loop {
        let Ok(seat) = seats.clone().acquire_owned().await else { return };
        let connection = listener.next().await;
        let stats = stats.clone();
        spawn_local(async move {
            let peer = connection.peer();
            if let Err(reason) = client(connection, &stats).await {
                tracing::debug!(%peer, reason, "control client closed");
            }
            drop(seat);
        });
    }
}

/// One client until it closes, idles or breaks a rule of the transport.
async fn client(mut connection: Connection, stats: &SharedStats) -> Result<(), String> {
    let mut buffer = FrameBuffer::new(FRAME_BYTES_MAX).map_err(|e| e.to_string())?;
    let mut reply = Vec::new();
    loop {
        let frame = timeout(IDLE_TIME, connection.recv(&mut buffer, FRAME_TIME))
            .await
            .map_err(|_| "idle".to_owned())?
            .map_err(|e| e.to_string())?;
        let Some(len) = frame else { return Ok(()) };
        let close = answer(buffer.frame(len), stats, &mut reply);
        connection.send(&reply).await.map_err(|e| e.to_string())?;
        if close {
            return Err("not a client of this protocol".into());
        }
    }
}

/// Answers one frame; true when the connection must end.
fn answer(frame: &[u8], stats: &SharedStats, reply: &mut Vec<u8>) -> bool {
    let (header, body) = AppHeader::split(frame).expect("the transport checks frame lengths");
    let refuse = |reply: &mut Vec<u8>, refused: Refused| {
        write_reply(reply, &header, refused.status(), &[]);
        refused.closes()
    };
    match check_header(&header, body) {
        Err(refused) => refuse(reply, refused),
        Ok(op @ (Op::Ping | Op::Stats)) if !body.is_empty() => {
            refuse(reply, Refused::Body { op, len: body.len() })
        }
        Ok(Op::Ping) => {
            write_reply(reply, &header, FrameStatus::Ok, &[]);
            false
        }
        Ok(Op::Stats) => {
            let text = stats.snapshot().measured().to_json().to_string();
            write_reply(reply, &header, FrameStatus::Ok, text.as_bytes());
            false
        }
        Ok(Op::Hello | Op::Step | Op::Reset) => refuse(reply, Refused::Op(header.op.get())),
    }
}
