package memory

import (
	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Live follows what the running attempts of a stage take, sample by sample, while no attempt of it has taught its size:
// the first run of a long stage would hold what was guessed for hours.
type Live struct {
	CPU    usage.Selector `json:"cpu"`    // thousandths of a core
	Memory usage.Selector `json:"memory"` // bytes
	// Peak is the most that a sample has seen since an attempt has ended.
	Peak quantity.Bytes `json:"peak,omitempty"`
	// Told is the size that was last advised; zero before the first.
	Told quantity.Size `json:"told,omitzero"`
}

// maxLive bounds the stages that are followed at a time, because each takes some tens of kilobytes of a checkpoint.
const maxLive = 32

// follow takes a sample of one of the stage's attempts at the pool.
func (m *State) follow(st *Stage, e fact.Sampled) {
	if e.Venue != fact.Pool || st.Model.Memory.Known() >= usage.Enough {
		m.unfollow(st)
		return
	}
	if st.Live == nil {
		if m.followed >= maxLive {
			return
		}
		cpu, err := usage.NewSelector(usage.SelectorOptions{OverCost: usage.CPUOverCost})
		if err != nil {
			return // the options are constants that Validate takes
		}
		st.Live = &Live{CPU: *cpu}
		m.followed++
	}
	st.Live.CPU.Observe(usage.Observation{At: e.At, Value: float64(max(0, e.CPU))})
	st.Live.Peak = max(st.Live.Peak, min(e.Memory, fact.MaxPeakMemory))
	st.Live.Memory.Observe(usage.Observation{At: e.At, Value: float64(max(0, e.Memory))})
}

// unfollow forgets what running attempts of the stage take.
func (m *State) unfollow(st *Stage) {
	if st.Live != nil {
		st.Live = nil
		m.followed--
	}
}
