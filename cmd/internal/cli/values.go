package cli

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// span is a flag that takes a positive duration; orZero accepts zero too.
type span struct {
	value  *time.Duration
	orZero bool
}

// String returns the value as a duration is written; empty for none.
func (s span) String() string {
	if s.value == nil || *s.value == 0 && !s.orZero {
		return ""
	}
	return s.value.String()
}

// Type is the placeholder in the usage.
func (s span) Type() string { return "DURATION" }

// Set reads "90s", "10m" or "1h30m".
func (s span) Set(text string) error {
	const hint = "write a duration with its unit, such as 90s, 10m or 1h30m"
	value, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return &usage{problem: "it is not a duration", hint: hint}
	case value < 0:
		return &usage{problem: "it is negative", hint: hint}
	case value == 0 && !s.orZero:
		return &usage{problem: "it is zero", hint: "leave the flag out for none; " + hint}
	}
	*s.value = value
	return nil
}

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
		return &usage{problem: "it is zero", hint: "leave the flag out for no limit"}
	}
	money, err := quantity.Dollars(amount)
	if err != nil {
		return &usage{problem: "it is too large", hint: "write US dollars below 4 million"}
	}
	if money == 0 && d.positive {
		return &usage{problem: "it is less than a picodollar", hint: "leave the flag out for no limit"}
	}
	*d.value = money
	return nil
}

// memory is a flag that takes an amount of memory.
type memory struct{ value *quantity.Bytes }

// String returns the amount with its unit; empty for none.
func (m memory) String() string {
	if m.value == nil || *m.value == 0 {
		return ""
	}
	return m.value.String()
}

// Type is the placeholder in the usage.
func (m memory) Type() string { return "MEMORY" }

// Set reads "512MiB", "1.5GiB" or "2GB".
func (m memory) Set(text string) (err error) {
	if *m.value, err = quantity.ParseBytes(text); err != nil {
		return &usage{problem: "it is not an amount of memory", hint: "write it with its unit, such as 512MiB, 1.5GiB or 2GB"}
	}
	return nil
}

// cores is a flag that takes a share of cores.
type cores struct{ value *quantity.Milli }

// String returns the number of cores; empty for none.
func (c cores) String() string {
	if c.value == nil || *c.value == 0 {
		return ""
	}
	return c.value.String()
}

// Type is the placeholder in the usage.
func (c cores) Type() string { return "CORES" }

// Set reads "2", "0.5" or "500m".
func (c cores) Set(text string) (err error) {
	if *c.value, err = quantity.ParseCores(text); err != nil {
		return &usage{problem: "it is not a number of cores", hint: "write cores, such as 2, 0.5 or 500m"}
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
		return &usage{problem: "it is zero", hint: hint}
	}
	*f.value = value
	return nil
}

// number reads a finite number of at least 0.
func number(text, hint string) (float64, error) {
	value, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil && !math.IsInf(value, 0):
		return 0, &usage{problem: "it is not a number", hint: hint}
	case math.IsNaN(value) || math.IsInf(value, 0):
		return 0, &usage{problem: "it is not a finite number", hint: hint}
	case value < 0:
		return 0, &usage{problem: "it is negative", hint: hint}
	}
	return value, nil
}

// choice is a flag that takes one of a few words.
type choice struct {
	value *string
	of    []string
}

// String returns the word; empty for none.
func (c choice) String() string {
	if c.value == nil {
		return ""
	}
	return *c.value
}

// Type is the placeholder in the usage.
func (c choice) Type() string { return strings.Join(c.of, "|") }

// Set takes one of the words.
func (c choice) Set(text string) error {
	if !slices.Contains(c.of, text) {
		return &usage{problem: "it is none of " + strings.Join(c.of, ", "), hint: "write " + strings.Join(c.of, " or ")}
	}
	*c.value = text
	return nil
}

// destination is a flag that takes the path of what is written; an empty one, as of a variable that is not set, is refused.
type destination struct{ value *string }

// String returns the path; empty for none.
func (d destination) String() string {
	if d.value == nil {
		return ""
	}
	return *d.value
}

// Type is the placeholder in the usage.
func (d destination) Type() string { return "PATH" }

// Set takes any path but the empty one.
func (d destination) Set(text string) error {
	if text == "" {
		return &usage{problem: "it is empty", hint: "give a path, or leave the flag out"}
	}
	*d.value = text
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
		return &usage{problem: "it is not a TCP port", hint: "write a number from 1 to 65535, or leave the flag out"}
	}
	*p.value = value
	return nil
}

// count is a flag that takes a number of at least least.
type count struct {
	value *int
	least int
}

// String returns the number; empty for zero.
func (c count) String() string {
	if c.value == nil || *c.value == 0 {
		return ""
	}
	return strconv.Itoa(*c.value)
}

// Type is the placeholder in the usage.
func (c count) Type() string { return "N" }

// Set reads a number.
func (c count) Set(text string) error {
	value, err := strconv.Atoi(text)
	if err != nil || value < c.least || value > math.MaxInt32 {
		return &usage{problem: "it is not a whole number in range", hint: fmt.Sprintf("write a number of at least %d", c.least)}
	}
	*c.value = value
	return nil
}

// cpuList is a flag that takes CPU numbers as the kernel writes them: "0-3,8".
type cpuList struct{ value *[]int }

// String returns the numbers as the kernel writes them.
func (c cpuList) String() string {
	if c.value == nil {
		return ""
	}
	return formatCPUs(*c.value)
}

// Type is the placeholder in the usage.
func (c cpuList) Type() string { return "CPUS" }

// mostCPUs is above every machine that Linux runs on (NR_CPUS is at most 8192).
const mostCPUs = 8192

// Set reads a list of numbers and ranges.
func (c cpuList) Set(text string) error {
	bad := &usage{problem: "it is not a list of CPU numbers", hint: "write numbers and ranges, such as 0-3,8; `spillway doctor` tells which there are"}
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

// formatCPUs writes sorted CPU numbers as the kernel does: [0 1 2 3 8] is "0-3,8".
func formatCPUs(cpus []int) string {
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
