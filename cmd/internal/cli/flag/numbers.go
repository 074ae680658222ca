package flag

import (
	"fmt"
	"math"
	"strconv"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
)

// Weight is a flag that takes a number of at least least.
type Weight struct {
	Value *float64
	Least float64
}

// String returns the number; empty for zero.
func (w Weight) String() string {
	if w.Value == nil || *w.Value == 0 {
		return ""
	}
	return strconv.FormatFloat(*w.Value, 'g', -1, 64)
}

// Type is the placeholder in the usage.
func (w Weight) Type() string { return "X" }

// Set reads "0.5" or "4".
func (w Weight) Set(text string) error {
	hint := fmt.Sprintf("write a number of at least %g", w.Least)
	value, err := number(text, hint)
	if err != nil {
		return err
	}
	const most = 1e6
	if value < w.Least || value > most {
		return &fault.UsageError{Problem: "it is not in range", Hint: hint + fmt.Sprintf(" and at most %g", most)}
	}
	*w.Value = value
	return nil
}

// MicroBatches is a flag that takes a number, or auto.
type MicroBatches struct{ Value *int }

// String returns the number; empty for auto.
func (m MicroBatches) String() string { return Count{m.Value, 1}.String() }

// Type is the placeholder in the usage.
func (m MicroBatches) Type() string { return "N|auto" }

// Set reads "8" or "auto".
func (m MicroBatches) Set(text string) error {
	if text == "auto" {
		*m.Value = 0
		return nil
	}
	value, err := strconv.Atoi(text)
	const most = 1 << 16
	if err != nil || value < 1 || value > most {
		return &fault.UsageError{
			Problem: "it is neither auto nor a whole number in range",
			Hint:    fmt.Sprintf("write auto, or a number from 1 to %d", most),
		}
	}
	*m.Value = value
	return nil
}

// ZeRO is a flag that takes a stage of ZeRO.
type ZeRO struct{ Value *int }

// String returns the stage; empty for 0.
func (z ZeRO) String() string { return Count{z.Value, 0}.String() }

// Type is the placeholder in the usage.
func (z ZeRO) Type() string { return "0..3" }

// Set reads "0" to "3".
func (z ZeRO) Set(text string) error {
	if len(text) != 1 || text[0] < '0' || text[0] > '3' {
		return &fault.UsageError{Problem: "it is not a stage of ZeRO", Hint: "write 0, 1, 2 or 3"}
	}
	*z.Value = int(text[0] - '0')
	return nil
}

// Automatic is a flag that takes a number, or auto.
type Automatic struct{ Value *int }

// String returns the number; empty for auto.
func (a Automatic) String() string { return MicroBatches(a).String() }

// Type is the placeholder in the usage.
func (Automatic) Type() string { return "auto|N" }

// Set reads "2" or "auto".
func (a Automatic) Set(text string) error { return MicroBatches(a).Set(text) }

// Large is a flag that takes a number of at least 1 that may be beyond 32 bits.
type Large struct{ Value *int64 }

// String returns the number; empty for zero.
func (l Large) String() string {
	if l.Value == nil || *l.Value == 0 {
		return ""
	}
	return strconv.FormatInt(*l.Value, 10)
}

// Type is the placeholder in the usage.
func (Large) Type() string { return "N" }

// Set reads a number.
func (l Large) Set(text string) error {
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil || value < 1 || value > math.MaxInt32*1024 {
		return &fault.UsageError{Problem: "it is not a whole number in range", Hint: "write a number of at least 1"}
	}
	*l.Value = value
	return nil
}

// Seed is a flag that takes a number of 64 bits.
type Seed struct{ Value *uint64 }

// String returns the number; empty for zero.
func (s Seed) String() string {
	if s.Value == nil || *s.Value == 0 {
		return ""
	}
	return strconv.FormatUint(*s.Value, 10)
}

// Type is the placeholder in the usage.
func (Seed) Type() string { return "N" }

// Set reads a number.
func (s Seed) Set(text string) (err error) {
	if *s.Value, err = strconv.ParseUint(text, 10, 64); err != nil {
		return &fault.UsageError{Problem: "it is not a seed", Hint: "write a whole number from 0 to 18446744073709551615"}
	}
	return nil
}
