//! New context rows: taps to window K=V. Twin of the CPU backend's `context`.

use super::device::DeviceError;
use super::engine::{Engine, Halt, Norm, Rows, Source, Stored, Watch};
use super::kernels::Arg;
use super::records::word;
use crate::drafter::stage::Stage;

impl Engine {
    /// Stores the rows that the context piece names, at most `bound` of them.
    ///
    /// `places` are the rows' places in a layer's store, for the watch.
    pub(super) fn context(
        &self,
        bound: usize,
        places: &[usize],
        watch: &mut Watch<'_>,
    ) -> Result<(), Halt> {
        let (s, b, meta) = (&self.shape, &self.buffers, &self.context_meta);
        let rows = Rows { at: meta.rows, bound };
        let n = places.len();
        let taps = Source { x: b.taps, pitch: s.taps, gather: meta.tap_rows, angles: 0 };
        self.rotate(&self.groups.main_proj, rows, &taps)?;
        self.multiply(&self.groups.main_proj, rows, b.rotated)?;
        self.finish(&self.groups.main_proj, rows, 0)?;
        watch.show(self, Stage::MainProj, None, Stored::Bf16, b.projected, n * s.hidden)?;
        let kv = &self.groups.context_kv;
        let weight = self.weights.main_norm;
        self.norm_rotate(kv, rows, &Norm { x: b.projected, gather: 0, weight, y: b.main_x })?;
        watch.show(self, Stage::MainNorm, None, Stored::Bf16, b.main_x, n * s.hidden)?;
        self.multiply(kv, rows, b.rotated)?;
        self.finish(kv, rows, 0)?;
        let layer_rows = s.slots * s.window;
        self.kv_store(rows, meta.angles, meta.places, b.window, 0, s.layers, layer_rows)?;
        for layer in 0..s.layers {
            let row =
                |&place: &usize| b.window + (2 * (layer * layer_rows + place) * s.head_dim) as u64;
            let pieces: Vec<u64> = places.iter().map(row).collect();
            watch.show_pieces(
                self,
                Stage::ContextKv,
                Some(layer),
                Stored::Bf16,
                &pieces,
                s.head_dim,
            )?;
        }
        Ok(())
    }

    /// Norms, turns and stores K=V rows of `layers` draft layers from `first_layer` on.
    #[allow(clippy::too_many_arguments, reason = "the places of one kernel launch")]
    pub(super) fn kv_store(
        &self,
        rows: Rows,
        angles: u64,
        places: u64,
        store: u64,
        first_layer: usize,
        layers: usize,
        layer_rows: usize,
    ) -> Result<(), DeviceError> {
        let (k, s) = (&self.kernels, &self.shape);
        let weights = self.weights.kv_norms + (4 * first_layer * s.head_dim) as u64;
        // SAFETY: arguments as norm.cu declares them; places lie within the store.
        unsafe {
            k.launch(
                k.kv_store,
                [rows.bound, layers, 1],
                0,
                &[
                    Arg::At(self.buffers.raw_kv),
                    Arg::At(weights),
                    Arg::At(angles),
                    Arg::At(places),
                    Arg::At(store),
                    Arg::Word(word(layer_rows)),
                    Arg::Word(word(s.head_dim)),
                    Arg::Word(word(s.rotary)),
                    Arg::Float(s.rms_eps),
                    Arg::At(rows.at),
                ],
            )
        }
    }
}
