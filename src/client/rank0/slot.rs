//! One request slot of rank 0: owner, generation, window, ring, dirty bit (contract §7.1, §7.3, §7.4).

use std::ops::Range;

use super::{EngineRequest, Owner};
use crate::plan::RowBlock;
use crate::protocol::ReqEntry;
use crate::protocol::step::{NEED_DRAFT, NEW_GEN, RESYNC};
use crate::ring::RowRing;
use crate::window::{Entry, Generation, Window};

/// What rank 0 knows of a slot. The ring is exact: it holds the rows of `window`, whatever was sent.
#[derive(Clone, Debug)]
pub struct Slot {
    owner: Option<Owner>,
    generation: Generation,
    window: Window,
    ring: RowRing,
    anchor_token: i32,
    dirty: bool,
}

impl Slot {
    pub(super) fn new(window: u32, row_bytes: usize, generation: u32) -> Self {
        Self {
            owner: None,
            generation: Generation(generation),
            window: Window::default(),
            ring: RowRing::new(window, row_bytes),
            anchor_token: 0,
            dirty: false,
        }
    }

    /// The request the slot belongs to; a slot with an owner is live, also when the request has finished.
    pub fn owner(&self) -> Option<Owner> {
        self.owner
    }

    /// Generation and positions, by the worker's own rule.
    pub fn window(&self) -> Window {
        self.window
    }

    /// The rows of the window, keyed by position mod W.
    pub fn ring(&self) -> &RowRing {
        &self.ring
    }

    /// Token of the last anchor.
    pub fn anchor_token(&self) -> i32 {
        self.anchor_token
    }

    /// Whether the worker's window may differ from the ring's.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    pub(super) fn set_dirty(&mut self, dirty: bool) {
        self.dirty = dirty;
    }

    /// Dirty if it has an owner.
    pub(super) fn resync(&mut self) {
        self.dirty = self.owner.is_some();
    }

    /// Takes a request's rows into the ring. Returns the entry to send and the ring positions whose rows
    /// go with it.
    pub(super) fn take(
        &mut self,
        request: &EngineRequest,
        rows: RowBlock<'_>,
        window: u32,
    ) -> (ReqEntry, Range<i64>) {
        let new_owner = self.owner != Some(request.owner);
        if new_owner {
            self.owner = Some(request.owner);
            self.generation = self.generation.next();
            self.window = Window { generation: Some(self.generation), span: None };
            // A plain NEW_GEN with the new owner's rows sets the worker right (contract-notes D44).
            self.dirty = false;
        }
        self.anchor_token = request.anchor_token;
        let n_rows = u32::try_from(request.rows.len()).expect("a request has at most W rows");
        let entry = Entry {
            generation: self.generation,
            new_gen: false,
            need_draft: request.need_draft,
            first_pos: request.first_pos,
            n_rows,
            rows_fit: true,
            anchor_pos: request.anchor_pos,
            // The rows are verified whatever the anchor token is; the worker judges the token.
            anchor_token_valid: true,
        };
        let applied = self.window.apply(&entry, window);
        if applied.is_ok() {
            self.ring.store(request.first_pos, rows.rows(request.rows.clone()));
        }
        let anchor = request.anchor_pos;
        let send = match applied {
            Ok(applied) if self.dirty => applied.context,
            Ok(_) if n_rows > 0 => request.first_pos..anchor,
            // Without rows and without a window that reaches the anchor the worker must say BAD_ENTRY.
            _ => anchor..anchor,
        };
        (self.entry(request, new_owner, &send), send)
    }

    fn entry(&self, request: &EngineRequest, new_owner: bool, send: &Range<i64>) -> ReqEntry {
        let mut req_flags = if request.need_draft { NEED_DRAFT } else { 0 };
        if self.dirty {
            req_flags |= NEW_GEN | RESYNC;
        } else if new_owner {
            req_flags |= NEW_GEN;
        }
        let n_rows = u32::try_from(send.end - send.start).expect("at most W rows");
        ReqEntry {
            slot: request.slot,
            req_flags,
            k_window: request.k_window,
            n_out: request.n_out,
            generation: self.generation.0.into(),
            first_pos: send.start.into(),
            n_rows: n_rows.into(),
            anchor_token: request.anchor_token.into(),
            anchor_pos: request.anchor_pos.into(),
        }
    }
}
