package ledger

import (
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Memory is what attempts of a stage took of what they held, at one venue: at functions a grant is a class of the
// venue, and no peak there says how well the pool's sizes fit.
type Memory struct {
	// Peak is the highest memory of any attempt.
	Peak quantity.Bytes `json:"peak_bytes"`
	// Grant is what the latest attempt held, or, where that is less than Peak, what the attempt with that peak did.
	Grant quantity.Bytes `json:"grant_bytes"`
}

// held is what is remembered for a Memory.
type held struct{ peak, atPeak, latest quantity.Bytes }

// holds takes note of what an attempt at a venue holds and of its peak so far.
func (st *stage) holds(venue predictor.Venue, grant, peak quantity.Bytes) {
	if venue == "" {
		return
	}
	if st.memory == nil {
		st.memory = map[predictor.Venue]held{}
	}
	h := st.memory[venue]
	h.latest = grant
	if peak > h.peak {
		h.peak, h.atPeak = peak, grant
	}
	st.memory[venue] = h
}

// memoryViews are the stage's venues as others see them; nil while no attempt has begun.
func (st *stage) memoryViews() map[predictor.Venue]Memory {
	if len(st.memory) == 0 {
		return nil
	}
	views := make(map[predictor.Venue]Memory, len(st.memory))
	for venue, h := range st.memory {
		view := Memory{Peak: h.peak, Grant: h.latest}
		if h.latest < h.peak {
			view.Grant = h.atPeak
		}
		views[venue] = view
	}
	return views
}
