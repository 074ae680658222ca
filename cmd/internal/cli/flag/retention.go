package flag

import (
	"time"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/retention"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// room is a flag that takes how many bytes something may take; 0 bytes are refused.
type room struct{ value *quantity.Bytes }

// String returns the amount with its unit; empty for none.
func (r room) String() string { return Memory{r.value}.String() }

// Type is the placeholder in the usage.
func (r room) Type() string { return "SIZE" }

// Set reads "500MiB", "1.5GiB" or "2GB".
func (r room) Set(text string) error {
	const hint = "write it with its unit, such as 500MiB or 200GiB; leave the flag out for 60% of the disk"
	value, err := quantity.ParseBytes(text)
	if err != nil {
		return &fault.UsageError{Problem: "it is not an amount of bytes above 0", Hint: hint}
	}
	*r.value = value
	return nil
}

// keep is a flag that takes for how long something is kept.
type keep struct{ value *time.Duration }

// String returns the value as a duration is written; empty for none.
func (k keep) String() string { return Span{Value: k.value}.String() }

// Type is the placeholder in the usage.
func (k keep) Type() string { return "DURATION" }

// Set reads "36h" or "720h".
func (k keep) Set(text string) error {
	const hint = "write more than 0 and at most 720h (30 days), such as 12h or 168h; leave the flag out for 30 days"
	value, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return &fault.UsageError{Problem: "it is not a duration", Hint: hint}
	case value <= 0:
		return &fault.UsageError{Problem: "nothing can be kept for it", Hint: hint}
	case value > retention.UsualKeepFor:
		return &fault.UsageError{Problem: "it is longer than histories are kept", Hint: hint}
	}
	*k.value = value
	return nil
}

// hours is a flag that takes for how long costs are kept by the hour.
type hours struct{ value *time.Duration }

// String returns the value as a duration is written; empty for none.
func (h hours) String() string { return Span{Value: h.value}.String() }

// Type is the placeholder in the usage.
func (h hours) Type() string { return "DURATION" }

// Set reads "720h" or "2160h".
func (h hours) Set(text string) error {
	const hint = "write 720h (30 days) to 8760h (a year), such as 2160h; leave the flag out for 90 days"
	value, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return &fault.UsageError{Problem: "it is not a duration", Hint: hint}
	case value < ledgerstore.LeastHours:
		return &fault.UsageError{Problem: "it is too short: what is younger than 30 days may still change", Hint: hint}
	case value > ledgerstore.MostHours:
		return &fault.UsageError{Problem: "it is longer than ended runs are known", Hint: hint}
	}
	*h.value = value
	return nil
}
