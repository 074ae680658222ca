// Package flag reads what the command line says: values with their units, arguments, inputs, and the flags that several
// commands share.
package flag

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
)

// Span is a flag that takes a positive duration; orZero accepts zero too, and most bounds it where it is not 0.
type Span struct {
	Value  *time.Duration
	orZero bool
	most   time.Duration
}

// String returns the value as a duration is written; empty for none.
func (s Span) String() string {
	if s.Value == nil || *s.Value == 0 && !s.orZero {
		return ""
	}
	return s.Value.String()
}

// Type is the placeholder in the usage.
func (s Span) Type() string { return "DURATION" }

// Set reads "90s", "10m" or "1h30m".
func (s Span) Set(text string) error {
	const hint = "write a duration with its unit, such as 90s, 10m or 1h30m"
	value, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return &fault.UsageError{Problem: "it is not a duration", Hint: hint}
	case value < 0:
		return &fault.UsageError{Problem: "it is negative", Hint: hint}
	case value == 0 && !s.orZero:
		return &fault.UsageError{Problem: "it is zero", Hint: "leave the flag out, or " + hint}
	case s.most > 0 && value > s.most:
		return &fault.UsageError{Problem: "it is too long", Hint: "write at most " + s.most.String()}
	}
	*s.Value = value
	return nil
}

// SpanOrNone is a flag that takes a duration of zero too, and of at most most.
func SpanOrNone(value *time.Duration, most time.Duration) pflag.Value {
	return Span{Value: value, orZero: true, most: most}
}

// Price is a flag that takes an amount of US dollars.
func Price(value *quantity.Money) pflag.Value { return dollars{value: value} }

// Amount is a flag that takes an amount of US dollars that is more than nothing.
func Amount(value *quantity.Money) pflag.Value { return dollars{value: value, positive: true} }

// Ratio is a flag that takes a positive ratio.
func Ratio(value *float64) pflag.Value { return factor{value} }

// dollars is a flag that takes an amount of US dollars; positive refuses zero too.
type dollars struct {
	value    *quantity.Money
	positive bool
}

// String returns the amount in dollars; empty for none.
func (d dollars) String() string {
	if d.value == nil || *d.value == 0 {
		return ""
	}
	return strconv.FormatFloat(d.value.USD(), 'g', -1, 64)
}

// Type is the placeholder in the usage.
func (d dollars) Type() string { return "USD" }

// Set reads "0.50" or "$0.50".
func (d dollars) Set(text string) error {
	amount, err := number(strings.TrimPrefix(text, "$"), "write US dollars, such as 0.50")
	if err != nil {
		return err
	}
	if amount == 0 && d.positive {
		return &fault.UsageError{Problem: "it is zero", Hint: "leave the flag out for no limit"}
	}
	money, err := quantity.Dollars(amount)
	if err != nil {
		return &fault.UsageError{Problem: "it is too large", Hint: "write US dollars below 4 million"}
	}
	if money == 0 && d.positive {
		return &fault.UsageError{Problem: "it is less than a picodollar", Hint: "leave the flag out for no limit"}
	}
	*d.value = money
	return nil
}

// confidence is a flag that takes a probability with which a deadline is to be met.
type confidence struct{ value *float64 }

// String returns the probability; empty for none.
func (c confidence) String() string {
	if c.value == nil || *c.value == 0 {
		return ""
	}
	return strconv.FormatFloat(*c.value, 'g', -1, 64)
}

// Type is the placeholder in the usage.
func (c confidence) Type() string { return "PROBABILITY" }

// Set reads "0.99" or "99%".
func (c confidence) Set(text string) error {
	const hint = "write a probability from 0.5 to 0.999, such as 0.95"
	part, percent := strings.CutSuffix(text, "%")
	value, err := number(part, hint)
	if err != nil {
		return err
	}
	if percent {
		value = math.Round(value*1e9) / 1e11
	}
	if !(value >= predictor.LeastConfidence && value <= predictor.MostConfidence) {
		return &fault.UsageError{Problem: "it is out of bounds", Hint: hint}
	}
	*c.value = value
	return nil
}

// Memory is a flag that takes an amount of memory.
type Memory struct{ Value *quantity.Bytes }

// String returns the amount with its unit; empty for none.
func (m Memory) String() string {
	if m.Value == nil || *m.Value == 0 {
		return ""
	}
	return m.Value.String()
}

// Type is the placeholder in the usage.
func (m Memory) Type() string { return "MEMORY" }

// Set reads "512MiB", "1.5GiB" or "2GB".
func (m Memory) Set(text string) (err error) {
	if *m.Value, err = quantity.ParseBytes(text); err != nil {
		return &fault.UsageError{
			Problem: "it is not an amount of memory",
			Hint:    "write it with its unit, such as 512MiB, 1.5GiB or 2GB",
		}
	}
	return nil
}

// hostMemory is a flag that takes an amount of memory that this machine has.
type hostMemory struct{ Memory }

// Set reads what Memory reads.
func (m hostMemory) Set(text string) error {
	if err := m.Memory.Set(text); err != nil {
		return err
	}
	host, err := enforce.HostSize()
	if err != nil {
		return err
	}
	if *m.Value > host.Memory {
		return &fault.UsageError{
			Problem: fmt.Sprintf("this machine has %s", host.Memory),
			Hint:    "give less, or leave the flag out for 80% of what is available",
		}
	}
	return nil
}

// Cores is a flag that takes a share of cores.
type Cores struct{ Value *quantity.Milli }

// String returns the number of cores; empty for none.
func (c Cores) String() string {
	if c.Value == nil || *c.Value == 0 {
		return ""
	}
	return c.Value.String()
}

// Type is the placeholder in the usage.
func (c Cores) Type() string { return "CORES" }

// Set reads "2", "0.5" or "500m".
func (c Cores) Set(text string) (err error) {
	if *c.Value, err = quantity.ParseCores(text); err != nil {
		return &fault.UsageError{Problem: "it is not a number of cores", Hint: "write cores, such as 2, 0.5 or 500m"}
	}
	return nil
}

// factor is a flag that takes a positive ratio.
type factor struct{ value *float64 }

// String returns the ratio.
func (f factor) String() string {
	if f.value == nil {
		return ""
	}
	return strconv.FormatFloat(*f.value, 'g', -1, 64)
}

// Type is the placeholder in the usage.
func (f factor) Type() string { return "RATIO" }

// Set reads "1" or "0.5".
func (f factor) Set(text string) error {
	const hint = "write a positive number, such as 1 or 0.5"
	value, err := number(text, hint)
	if err != nil {
		return err
	}
	if value == 0 {
		return &fault.UsageError{Problem: "it is zero", Hint: hint}
	}
	*f.value = value
	return nil
}

// number reads a finite number of at least 0.
func number(text, hint string) (float64, error) {
	value, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil && !math.IsInf(value, 0):
		return 0, &fault.UsageError{Problem: "it is not a number", Hint: hint}
	case math.IsNaN(value) || math.IsInf(value, 0):
		return 0, &fault.UsageError{Problem: "it is not a finite number", Hint: hint}
	case value < 0:
		return 0, &fault.UsageError{Problem: "it is negative", Hint: hint}
	}
	return value, nil
}

// Choice is a flag that takes one of a few words.
type Choice struct {
	Value *string
	Of    []string
	// Name is the placeholder in the usage; empty is all of the words.
	Name string
}

// String returns the word; empty for none.
func (c Choice) String() string {
	if c.Value == nil {
		return ""
	}
	return *c.Value
}

// Choices are the words.
func (c Choice) Choices() []string { return c.Of }

// Type is the placeholder in the usage.
func (c Choice) Type() string { return cmp.Or(c.Name, strings.Join(c.Of, "|")) }

// Set takes one of the words.
func (c Choice) Set(text string) error {
	if !slices.Contains(c.Of, text) {
		return &fault.UsageError{
			Problem: "it is none of " + strings.Join(c.Of, ", "),
			Hint:    "write " + strings.Join(c.Of, " or "),
		}
	}
	*c.Value = text
	return nil
}

// Destination is a flag that takes the path of what is written; an empty one, as of a variable that is not set, is
// refused.
type Destination struct{ Value *string }

// String returns the path; empty for none.
func (d Destination) String() string {
	if d.Value == nil {
		return ""
	}
	return *d.Value
}

// Type is the placeholder in the usage.
func (d Destination) Type() string { return "PATH" }

// Set takes any path but the empty one.
func (d Destination) Set(text string) error {
	if text == "" {
		return &fault.UsageError{Problem: "it is empty", Hint: "give a path, or leave the flag out"}
	}
	*d.Value = text
	return nil
}

// port is a flag that takes a TCP port.
type port struct{ value *int }

// String returns the port; empty for none.
func (p port) String() string {
	if p.value == nil || *p.value == 0 {
		return ""
	}
	return strconv.Itoa(*p.value)
}

// Type is the placeholder in the usage.
func (p port) Type() string { return "PORT" }

// Set reads a number from 1 to 65535.
func (p port) Set(text string) error {
	value, err := strconv.Atoi(text)
	if err != nil || value < 1 || value > 65535 {
		return &fault.UsageError{
			Problem: "it is not a TCP port",
			Hint:    "write a number from 1 to 65535, or leave the flag out",
		}
	}
	*p.value = value
	return nil
}

// Count is a flag that takes a number of at least least.
type Count struct {
	Value *int
	Least int
}

// String returns the number; empty for zero.
func (c Count) String() string {
	if c.Value == nil || *c.Value == 0 {
		return ""
	}
	return strconv.Itoa(*c.Value)
}

// Type is the placeholder in the usage.
func (c Count) Type() string { return "N" }

// Set reads a number.
func (c Count) Set(text string) error {
	value, err := strconv.Atoi(text)
	if err != nil || value < c.Least || value > math.MaxInt32 {
		return &fault.UsageError{
			Problem: "it is not a whole number in range",
			Hint:    fmt.Sprintf("write a number of at least %d", c.Least),
		}
	}
	*c.Value = value
	return nil
}

// CPUList is a flag that takes CPU numbers as the kernel writes them: "0-3,8".
type CPUList struct{ value *[]int }

// String returns the numbers as the kernel writes them.
func (c CPUList) String() string {
	if c.value == nil {
		return ""
	}
	return FormatCPUs(*c.value)
}

// Type is the placeholder in the usage.
func (c CPUList) Type() string { return "CPUS" }

// mostCPUs is above every machine that Linux runs on (NR_CPUS is at most 8192).
const mostCPUs = 8192

// Set reads a list of numbers and ranges.
func (c CPUList) Set(text string) error {
	bad := &fault.UsageError{
		Problem: "it is not a list of CPU numbers",
		Hint:    "write numbers and ranges, such as 0-3,8; `spillway doctor` tells which there are",
	}
	var cpus []int
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err1 != nil || err2 != nil || first < 0 || last < first || last >= mostCPUs {
			return bad
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	slices.Sort(cpus)
	*c.value = slices.Compact(cpus)
	return nil
}

// FormatCPUs writes sorted CPU numbers as the kernel does: [0 1 2 3 8] is "0-3,8".
func FormatCPUs(cpus []int) string {
	var text strings.Builder
	for i := 0; i < len(cpus); {
		end := i
		for end+1 < len(cpus) && cpus[end+1] == cpus[end]+1 {
			end++
		}
		if text.Len() > 0 {
			text.WriteByte(',')
		}
		text.WriteString(strconv.Itoa(cpus[i]))
		if end > i {
			text.WriteString("-" + strconv.Itoa(cpus[end]))
		}
		i = end + 1
	}
	return text.String()
}
