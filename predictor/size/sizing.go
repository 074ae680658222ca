package size

import (
	"fmt"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Sizing is how attempts of one stage are sized when they are admitted: a model small enough to travel in the Plan.
//
// The memory limit is Base.Memory + Term at the attempt's features, times its level, at most Most for an attempt of a
// task that never ran out of memory, never below Floor and never above the host.
type Sizing struct {
	Stage fact.StageID `json:"stage"`
	// Base is the size where Term is zero.
	Base quantity.Size `json:"base"`
	// Term is what the limit of memory grows with; the zero Term where it depends on nothing that is known before.
	Term usage.Term `json:"memory_term,omitzero"`
	// Levels are those of the category that memory depends on, by 1 for the kind of attempts that takes the most: a host
	// of an earlier version grants that to all.
	Levels usage.Levels `json:"levels,omitzero"`
	// Floor is the least memory that is ever granted.
	Floor quantity.Bytes `json:"floor_bytes,omitempty"`
	// Most is the most that a first attempt is granted, however large its input: see [usage.Need]. 0 is no bound.
	Most quantity.Bytes `json:"most_bytes,omitempty"`
	// GPUPeak is the most that an attempt was seen to take of its devices, where Base.GPUMemory rests on that: what it has
	// above is head-room.
	GPUPeak quantity.Bytes `json:"gpu_peak_bytes,omitempty"`
	// Expected is the peak that is expected, without head-room.
	Expected Expected `json:"expected"`
	// Live is what attempts that have run for a while hold, as long as nothing is learned from attempts that have ended;
	// the zero Size leaves them what they were admitted with.
	Live quantity.Size `json:"live,omitzero"`
	// Duration is the run time at the pool that is expected by what is known of an attempt.
	Duration usage.Duration `json:"duration,omitzero"`
	// Speed brings it, and Wall, to the size that an attempt is given.
	Speed usage.Speed `json:"speed,omitzero"`
	// AtFunctions is by what factor attempts take longer at functions than that lets expect; 0 where none has ended there.
	AtFunctions float64 `json:"at_functions,omitempty"`
	// Wall is the same of one of which nothing is known, in seconds: the middle 80 percent of what came lately.
	Wall fact.Interval `json:"wall_seconds"`
	// WallFallen says that predictions of the run time were off by more than the bound, so that Wall is all that came, and
	// is expected of every attempt.
	WallFallen bool `json:"wall_fallen,omitempty"`
	// Source says what the sizing rests on; it becomes the Prediction's Source.
	Source string `json:"source"`
	// Attempts is how many Records the model has seen.
	Attempts int `json:"attempts"`
	// Learned is true when the size rests on Records, false for declared and first sizes.
	Learned bool `json:"learned,omitempty"`
	// Guess is true while nobody has declared or measured the memory: the base is a part of the host.
	Guess bool `json:"guess,omitempty"`
	// Static says that what is learned is only predicted and not granted: the predictor is off or watches (shadow), or
	// the tracked error of the peaks passed its bound.
	Static bool `json:"static,omitempty"`
}

// Expected is the peak of memory that attempts of a stage are expected to have: (Base + Term) x Levels x Ratio. The
// zero value expects nothing.
type Expected struct {
	// Base is in bytes.
	Base float64 `json:"base_bytes"`
	// Term adds to it.
	Term   usage.Term   `json:"term,omitzero"`
	Levels usage.Levels `json:"levels,omitzero"`
	// Above is the ratio to which attempts go that pass their limit; 0 where that is not known. See [usage.Need].
	Above float64 `json:"above,omitempty"`
	// Ratio bounds the middle 80 percent of peaks relative to the line.
	Ratio fact.Interval `json:"ratio"`
	// Guess says that it rests on what is alike: see [Prior].
	Guess bool `json:"guess,omitempty"`
}

// again is what an attempt should be given that ran out of memory at failed: at least as much as those took that passed
// their limits, where they took more than that, and otherwise so many times failed.
func (e Expected) again(features usage.Features, failed, grow quantity.Bytes) quantity.Bytes {
	above := e.line(features) * e.Above
	if known := RoundUp(quantity.Bytes(min(above, MostMemory)), quantity.MiB); known > failed {
		return known
	}
	return failed * grow
}

// At returns the expected peak at these features, in bytes.
func (e Expected) At(features usage.Features) fact.Interval {
	line := e.line(features)
	return fact.Interval{Low: line * e.Ratio.Low, Mid: line * e.Ratio.Mid, High: line * e.Ratio.High}
}

func (e Expected) line(features usage.Features) float64 {
	return (e.Base + e.Term.At(features)) * e.Levels.At(features)
}

// Need is what is known about an attempt before it runs.
type Need struct {
	// Input is the size of the encoded input and of the artifacts that it names.
	Input quantity.Bytes
	// Features are further numbers that are known of the task, by name.
	Features map[string]float64
	// OutOfMemory counts earlier attempts of this task that ran out of memory, of the host or of a device.
	OutOfMemory int
	// LargestFailed is the largest memory grant at which this task ran out of memory, LargestFailedGPU the largest grant
	// of device memory; 0 when it never did.
	LargestFailed    quantity.Bytes
	LargestFailedGPU quantity.Bytes
}

// Values are the numbers that are known of the attempt.
func (n Need) Values() usage.Features {
	return usage.Features{Input: float64(n.Input), Named: n.Features}
}

// GrowAfterOutOfMemory is the least ratio between the memory grant of an attempt and that of the attempt before it
// that ran out of memory, where nothing tells what attempts take that pass their limit. Doubling finds a need of n
// times the first grant in log2(n) attempts and overshoots by less than half.
const GrowAfterOutOfMemory = 2

// growGuess is the same while nothing is known: a guess says little about the need, and one attempt alone with a whole
// host costs less than a row of kills.
const growGuess = 4

// MostMemory bounds a limit, so that no sum overflows.
const MostMemory = float64(quantity.TiB) * 1024

// For returns the size of an attempt and what is expected of it, for a host whose children may hold capacity together.
// It never returns more than capacity, and never a size with no CPU or no memory while capacity has some. fits is
// false when the attempt already ran out of memory at all that the host has: no bigger size exists there.
func (s Sizing) For(need Need, capacity quantity.Size) (size quantity.Size, expected fact.Prediction, fits bool) {
	size = s.Base
	if !s.Static {
		size.Memory += quantity.Bytes(min(s.Term.At(need.Values()), MostMemory))
		if s.Levels.Name != "" {
			size.Memory = quantity.Bytes(min(float64(size.Memory)*s.Levels.At(need.Values()), MostMemory))
		}
	}
	if s.Most > 0 && need.OutOfMemory == 0 {
		size.Memory = min(size.Memory, s.Most)
	}
	size.Memory = max(size.Memory, s.Floor)
	expected = fact.Prediction{
		Memory: s.Expected.At(need.Values()), Source: s.Source, Guess: s.Expected.Guess,
	}
	fits = true
	if failed := need.LargestFailed; need.OutOfMemory > 0 && failed > 0 {
		grow := quantity.Bytes(GrowAfterOutOfMemory)
		if s.Guess {
			grow = growGuess
		}
		if s.Static {
			size.Memory = max(size.Memory, failed*grow)
		} else {
			size.Memory = max(size.Memory, s.Expected.again(need.Values(), failed, grow))
		}
		expected.Source = fmt.Sprintf("grown after running out of memory at %s", failed)
		fits = failed < capacity.Memory
	}
	if failed := need.LargestFailedGPU; need.OutOfMemory > 0 && failed > 0 {
		most := devices(size, capacity)
		size.GPUMemory = min(max(size.GPUMemory, failed*GrowAfterOutOfMemory), most)
		expected.Source = fmt.Sprintf("grown after running out of device memory at %s", failed)
		fits = fits && failed < quantity.WholeGPU(most)
	}
	if s.Learned && need.LargestFailedGPU == 0 && capacity.GPU > 0 { // head-room above what whole GPUs have is none
		if most := devices(size, capacity); quantity.WholeGPU(s.GPUPeak) <= most {
			size.GPUMemory = min(size.GPUMemory, most)
		} else { // it took more than these have: another host may have larger ones
			size.GPUMemory = min(size.GPUMemory, s.GPUPeak)
		}
	}
	size = size.AtMost(capacity)
	if size.CPU <= 0 {
		size.CPU = min(quantity.Core, capacity.CPU)
	}
	switch {
	case size.Memory > 0:
	case s.Term.PerUnit > 0 && !s.Static: // all that it needs hangs together with an input that is nothing here
		size.Memory = min(1, capacity.Memory)
	default:
		size.Memory = capacity.Memory
	}
	expected.Wall = s.wallOf(need, size.CPU.Cores())
	return size, expected, fits
}

// devices is the memory that the whole devices of an attempt of a size have, of a host whose children may hold capacity
// together.
func devices(size, capacity quantity.Size) quantity.Bytes {
	all := quantity.Bytes(capacity.GPU / quantity.Core)
	if all <= 0 {
		return 0
	}
	return capacity.GPUMemory / all * min(quantity.Bytes(size.WholeGPUs()), all)
}

// FunctionWall is the run time that is expected of an attempt at a function of this class.
func (s Sizing) FunctionWall(need Need, class quantity.Bytes) fact.Interval {
	expected := s.wallOf(need, ClassCores(class))
	if s.AtFunctions > 0 {
		expected.Low, expected.Mid = expected.Low*s.AtFunctions, expected.Mid*s.AtFunctions
		expected.High *= s.AtFunctions
	}
	return expected
}

// wallOf is the run time that is expected of an attempt at the pool with so many cores.
func (s Sizing) wallOf(need Need, cores float64) fact.Interval {
	expected, known := s.Duration.At(need.Values())
	if !known || s.WallFallen {
		expected = s.Wall
	}
	return s.Speed.Brought(expected, s.Duration.Cores, cores)
}

// reliefAt is the part of its memory at which a running attempt is given more, and reliefStep how much more at once.
const reliefAt, reliefStep = 0.90, 1.25

// Relief returns the memory that a running attempt should hold that uses as much as used of held, was admitted with
// admitted and expected to use expected at most (0 where nothing is known): more while it comes close to its limit and
// free room is there, held otherwise. One that was expected to come close to its limit, because attempts of its stage
// take about the same, must have passed what was expected. It never gives more than the next attempt would get if this
// one were killed, so that a leak does not eat the host.
func Relief(held, admitted, expected, used, free quantity.Bytes) quantity.Bytes {
	at := quantity.Bytes(reliefAt * float64(held))
	if expected < held {
		at = max(at, expected)
	}
	if held <= 0 || used <= at {
		return held
	}
	want := min(quantity.Bytes(reliefStep*float64(held)), admitted*GrowAfterOutOfMemory, held+max(free, 0))
	return max(held, want)
}

// Grows reports whether the memory that attempts are granted is a guess.
func (s Sizing) Grows() bool { return s.Guess && !s.Static }

// firm is from how many attempts on a limit that is learned is held: of n+1 peaks that come in no order the last is the
// largest with a probability of 1/(n+1), so a limit at the largest of fewer is passed by more than one in a hundred.
const firm = 100

// Borrows reports whether attempts may take more memory than they are granted, where it is free: the grant is a guess,
// or rests on few.
func (s Sizing) Borrows() bool { return s.Grows() || s.Learned && !s.Static && s.Attempts < firm }

// Follow returns the memory that a running attempt should be counted with that may take more than it holds, in whole
// MiB: what it holds, or the most that it has taken as far as that is free.
func Follow(held, peak, free quantity.Bytes) quantity.Bytes {
	return max(held, min(RoundUp(peak, quantity.MiB), held+max(free, 0)))
}

// Predicting is s with what next expects.
func (s Sizing) Predicting(next Sizing) Sizing {
	s.Floor, s.Expected, s.Attempts, s.Live = next.Floor, next.Expected, next.Attempts, next.Live
	s.Duration, s.Speed, s.Wall, s.WallFallen = next.Duration, next.Speed, next.Wall, next.WallFallen
	s.AtFunctions = next.AtFunctions
	if s.Learned && next.Learned {
		s.Most = next.Most
	}
	if next.Learned || s.Guess && next.Guess {
		s.Source = next.Source
	}
	return s
}

// ExpectedOf is the peak that is expected by what was learned.
func ExpectedOf(need usage.Need) Expected {
	return Expected{
		Base: need.Base, Term: need.Term, Levels: need.Levels,
		Ratio: fact.Interval{Low: need.Low, Mid: need.Mid, High: need.High},
		Above: need.Above,
	}
}

// Limits is what attempts are given, whatever it rests on.
func (s Sizing) Limits() Limits { return Limits{Base: s.Base, Term: s.Term, Levels: s.Levels} }

// Limited is s with these limits.
func (s Sizing) Limited(by Limits) Sizing {
	s.Base, s.Term, s.Levels = by.Base, by.Term, by.Levels
	return s
}
