package forecast

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// stateVersion is that of forecasterState. Another one is not read: what a Forecaster knows is learned again in days,
// and an ensemble that was made for other numbers would say wrong things meanwhile.
const stateVersion = 1

// forecasterState is a Forecaster as JSON. Long rows of numbers are little-endian bytes in base64.
type forecasterState struct {
	Version int     `json:"version"`
	Options Options `json:"options"`
	Seen    int64   `json:"seen,omitempty"`
	Newest  int64   `json:"newest_bucket,omitempty"`
	Strange int     `json:"strange,omitempty"`

	Now    *current      `json:"now,omitempty"`
	Fine   *historyState `json:"fine,omitempty"`
	Coarse *historyState `json:"coarse,omitempty"`
	Cycles *cycles       `json:"cycles,omitempty"`
	Far    *excursion    `json:"excursion,omitempty"`
	Bursts *burstsState  `json:"bursts,omitempty"`
	Knots  []knotState   `json:"knots,omitempty"`
}

// historyState is a history: its Values, float32, oldest first.
type historyState struct {
	Values []byte  `json:"values,omitempty"`
	Next   int64   `json:"next_block"`
	Sum    float64 `json:"sum,omitempty"`
	Count  int64   `json:"count,omitempty"`
}

// burstsState has the bursts as pairs of int64: start and length.
type burstsState struct {
	List     []byte  `json:"list,omitempty"`
	Share    float64 `json:"share,omitempty"`
	Mean     float64 `json:"mean,omitempty"`
	Variance float64 `json:"variance,omitempty"`
	Seen     float64 `json:"seen,omitempty"`
}

// knotState has what was learned, and the claims that wait.
type knotState struct {
	Learned []byte `json:"learned"`
	Waiting []byte `json:"waiting"`
}

// ErrState is wrapped by the errors of UnmarshalJSON about a state that no Forecaster of this version writes.
var ErrState = errors.New("not the state of a forecast of this version; start with an empty one")

// MarshalJSON writes all that the Forecaster remembers, so that one read from it goes on in the same way.
func (f *Forecaster) MarshalJSON() ([]byte, error) {
	state := forecasterState{
		Version: stateVersion, Options: f.options, Seen: f.seen, Newest: f.newest, Strange: f.strange,
	}
	if f.seen > 0 {
		state.Now, state.Cycles, state.Far = &f.now, &f.cycles, &f.far
		state.Fine, state.Coarse = f.fine.state(), f.coarse.state()
		state.Bursts = &burstsState{
			packed(f.bursts.List), f.bursts.Share, f.bursts.Mean, f.bursts.Variance, f.bursts.Seen,
		}
		for i := range f.knots {
			state.Knots = append(state.Knots, knotState{packed(&f.knots[i].learned), packed(f.knots[i].waiting)})
		}
	}
	return json.Marshal(state)
}

// UnmarshalJSON reads what MarshalJSON wrote. After an error the Forecaster is as it was.
func (f *Forecaster) UnmarshalJSON(data []byte) error {
	var state forecasterState
	if err := json.Unmarshal(data, &state); err != nil {
		return fmt.Errorf("read the state of a forecast: %w", err)
	}
	if state.Version != stateVersion {
		return fmt.Errorf("%w: it is of version %d, this one of %d", ErrState, state.Version, stateVersion)
	}
	read, err := New(state.Options)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	if state.Seen != 0 {
		if fault := read.restore(state); fault != "" {
			return fmt.Errorf("%w: %s", ErrState, fault)
		}
	}
	*f = *read
	return nil
}

// restore fills a new Forecaster, and says what no Forecaster would have written; empty when there is nothing.
func (f *Forecaster) restore(state forecasterState) (fault string) {
	switch {
	case state.Now == nil || state.Cycles == nil || state.Far == nil || state.Fine == nil || state.Coarse == nil ||
		state.Bursts == nil || len(state.Knots) != len(f.knots):
		return "a part is missing"
	case state.Seen < 0 || state.Strange < 0 || state.Strange >= strangeMost:
		return "a count out of range"
	}
	f.seen, f.newest, f.strange = state.Seen, state.Newest, state.Strange
	f.now, f.cycles, f.far = *state.Now, *state.Cycles, *state.Far
	f.bursts.Share, f.bursts.Mean = state.Bursts.Share, state.Bursts.Mean
	f.bursts.Variance, f.bursts.Seen = state.Bursts.Variance, state.Bursts.Seen
	f.bursts.List = make([]burst, len(state.Bursts.List)/binary.Size(burst{}))
	if !unpacked(state.Bursts.List, f.bursts.List) || len(f.bursts.List) > burstRoom {
		return "bursts of another length"
	}
	if !f.fine.restore(state.Fine) || !f.coarse.restore(state.Coarse) {
		return "a history of another length"
	}
	for i, knot := range state.Knots {
		if !unpacked(knot.Learned, &f.knots[i].learned) || !unpacked(knot.Waiting, f.knots[i].waiting) {
			return "a lead of another length"
		}
	}
	return f.fault()
}

// fault says what no observations lead to, so that nothing that was read makes a quantile NaN.
func (f *Forecaster) fault() string {
	end, latest := f.newest+1, math.MaxInt64/int64(f.options.Bucket)
	switch {
	case f.newest > latest || f.newest < -latest-1:
		return "a bucket beyond all times"
	case !finite(&f.now) || !finite(&f.cycles) || !finite(&f.far) || !finite(f.fine.sum, f.coarse.sum) ||
		!finite(f.bursts.Share, f.bursts.Mean, f.bursts.Variance, f.bursts.Seen) ||
		!within(0, 1, f.bursts.Share) || f.bursts.Variance < 0:
		return "a value out of range"
	case !f.cycles.plausible():
		return "a period of less than two buckets"
	case f.fine.next > floorDiv(end, f.fine.width) || f.coarse.next > floorDiv(end, f.coarse.width):
		return "a history of the future"
	case f.far.Length < 0 || f.far.Length > 0 && f.far.Start+f.far.Length > end || f.far.Count < 0:
		return "an excursion of the future"
	}
	before := int64(math.MinInt64)
	for _, one := range f.bursts.List {
		if one.Start < before || one.Length < 1 || one.Length > end-one.Start {
			return "bursts out of order"
		}
		before = one.Start + one.Length
	}
	for i := range f.knots {
		if fault := f.knots[i].fault(f.newest); fault != "" {
			return fault
		}
	}
	return ""
}

func (c cycles) plausible() bool {
	for _, period := range []float64{c.Day, c.Week, c.Hour, c.Bursts[0], c.Bursts[1]} {
		if period != 0 && !within(2, math.MaxInt32*coarseRoom, period) {
			return false
		}
	}
	return true
}

func (k *knot) fault(newest int64) string {
	if !finite(&k.learned) || k.Slow < 0 || k.Fast < 0 || k.Count < 0 {
		return "a value out of range"
	}
	for i, c := range k.waiting {
		switch {
		case c.Target == math.MinInt64:
			continue
		case floorMod(c.Target, k.ahead) != int64(i) || c.Target > newest+k.ahead:
			return "a claim about another bucket"
		case !finite(c.Base, c.Excess, c.Reference) || !(c.Sigma > 0) || !(c.Spread > 0) || !finite(c.Sigma, c.Spread) ||
			!within(0, 1, float64(c.Chance)) || !finite(&c.Looks) || !finite(&c.Signs):
			return "a claim out of range"
		}
	}
	return ""
}

func (h *history) state() *historyState {
	values := make([]float32, 0, h.seen)
	for block := h.next - h.seen; block < h.next; block++ {
		values = append(values, h.values[floorMod(block, int64(len(h.values)))])
	}
	return &historyState{packed(values), h.next, h.sum, h.count}
}

// restore says whether the state is that of a history like this one.
func (h *history) restore(state *historyState) bool {
	values := make([]float32, len(state.Values)/binary.Size(float32(0)))
	if !unpacked(state.Values, values) || len(values) > len(h.values) || state.Count < 0 || state.Count > h.width {
		return false
	}
	h.next, h.seen, h.sum, h.count = state.Next, int64(len(values)), state.Sum, state.Count
	for i, value := range values {
		if math.IsInf(float64(value), 0) {
			return false
		}
		h.values[floorMod(h.next-h.seen+int64(i), int64(len(h.values)))] = value
	}
	return true
}

// packed is a value of fixed size as little-endian bytes.
func packed(value any) []byte {
	var into bytes.Buffer
	if err := binary.Write(&into, binary.LittleEndian, value); err != nil {
		panic(err) // only for a type without a fixed size
	}
	return into.Bytes()
}

// unpacked fills a value from its bytes, and says whether they are as many as it takes.
func unpacked(data []byte, value any) bool {
	n, err := binary.Decode(data, binary.LittleEndian, value)
	return err == nil && n == len(data)
}

// finite says whether all floating-point numbers in values of fixed size are finite.
func finite(values ...any) bool {
	for _, value := range values {
		text, err := json.Marshal(value) // which refuses what is not finite
		if err != nil || text == nil {
			return false
		}
	}
	return true
}

func within(least, most, value float64) bool { return value >= least && value <= most }
