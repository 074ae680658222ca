package predictor

import (
	"fmt"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// live follows what the running attempts of a stage take, sample by sample, while no attempt of it has taught its size:
// the first run of a long stage would hold what was guessed for hours.
type live struct {
	CPU    usage.Selector `json:"cpu"`    // thousandths of a core
	Memory usage.Selector `json:"memory"` // bytes
	// Told is the size that was last advised; zero before the first.
	Told quantity.Size `json:"told,omitzero"`
}

// maxLive bounds the stages that are followed at a time, because each takes some tens of kilobytes of a checkpoint.
const maxLive = 32

// enoughSamples is how many samples a size of running attempts must rest on: a start says little about what follows.
const enoughSamples = 60

// follow takes a sample of one of the stage's attempts at the pool.
func (m *memory) follow(st *stage, e Sampled) {
	if e.Venue != Pool || st.model.Memory.Known() >= usage.Enough {
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
		st.Live = &live{CPU: *cpu}
		m.followed++
	}
	st.Live.CPU.Observe(usage.Observation{At: e.At, Value: float64(max(0, e.CPU))})
	st.Live.Memory.Observe(usage.Observation{At: e.At, Value: float64(max(0, e.Memory))})
}

// unfollow forgets what running attempts of the stage take.
func (m *memory) unfollow(st *stage) {
	if st.Live != nil {
		st.Live = nil
		m.followed--
	}
}

// liveSize is what running attempts of the stage should hold; zero while that is not known, or not asked for.
func (d *decider) liveSize(st *stage, s Sizing) quantity.Size {
	if st.Live == nil || s.Learned || s.Static {
		return quantity.Size{}
	}
	if len(d.hosts) == 0 {
		return st.Live.Told
	}
	cpu, memory := st.Live.CPU.Limit(), st.Live.Memory.Limit()
	if cpu.Samples < enoughSamples || memory.Samples < enoughSamples {
		return quantity.Size{}
	}
	size := quantity.Size{
		CPU:    max(roundUp(quantity.Milli(min(cpu.Value, float64(maxRate))), cpuStep), leastCPU),
		Memory: max(roundUp(quantity.Bytes(min(memory.Value, mostMemory)), quantity.MiB), d.policy.MinMemory),
	}
	if size.CPU >= oneCoreFrom && size.CPU <= quantity.Core {
		size.CPU = quantity.Core // as for attempts that have ended
	}
	if st.model.starved() {
		size.CPU = max(size.CPU, s.Base.CPU)
	}
	size = size.AtMost(d.largestHost())
	if told := st.Live.Told; !told.IsZero() && !moved(told, size) {
		return told
	}
	before := st.Live.Told
	from := "what they were admitted with"
	if !before.IsZero() {
		from = before.String()
	}
	d.decide(Decision{
		Stage: st.ID, Venue: Pool, What: "live size", From: from, To: size.String(),
		Reason: fmt.Sprintf("%d samples of attempts that run: memory by the %s, CPU by the %s", memory.Samples, memory.Model,
			cpu.Model),
		Inputs: map[string]float64{"samples": float64(memory.Samples), "cpu_milli": cpu.Value, "memory_bytes": memory.Value},
	})
	st.Live.Told = size
	return size
}
