package display

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spillway-ml/spillway/predictor/ledger"
)

// nobody names the line of what no run has caused.
const nobody = "(nobody)"

// Bill returns the lines that say who spent what: the period, a line for each of what the bill is divided by, and the
// sum. all says that it begins with the first that is known.
func Bill(bill ledger.Bill, all bool, s Style) []string {
	lines := []string{"cost by " + string(bill.By) + ", " + period(bill, all)}
	for _, gap := range bill.Incomplete {
		lines = append(lines, s.paint(yellow, incomplete(gap)))
	}
	if !bill.HoursSince.IsZero() {
		lines = append(lines, s.paint(yellow, "of times before "+moment(bill.HoursSince)+
			" whole days, in UTC, are known: the bill counts all of them"))
	}
	if len(bill.Lines) == 0 {
		return append(lines, "nothing was spent")
	}
	t := newTable(string(bill.By), ">held", ">attempts", ">pool", ">function", ">idle", ">wasted", ">total")
	sum := ledger.Line{Name: "total", Pool: bill.Pool, Function: bill.Function, Idle: bill.Idle, Total: bill.Total}
	for _, line := range bill.Lines {
		if line.Name == "" {
			line.Name = nobody
		}
		addBillLine(t, line)
		sum.Held += line.Held
		sum.Count += line.Count
		sum.Reused += line.Reused
		sum.Wasted += line.Wasted
	}
	addBillLine(t, sum)
	table := t.lines(s, "")
	table[len(table)-1] = s.paint(bold, table[len(table)-1])
	lines = append(append(lines, ""), table...)
	return append(lines, billNotes(bill, sum, s)...)
}

func addBillLine(t *table, line ledger.Line) {
	t.add(Clean(line.Name), seconds(line.Held.Seconds()), strconv.Itoa(line.Count), line.Pool.String(),
		line.Function.String(), line.Idle.String(),
		line.Wasted.String(), line.Total.String())
}

// billNotes says what the columns do not.
func billNotes(bill ledger.Bill, sum ledger.Line, s Style) []string {
	var notes []string
	if bill.Unused > 0 {
		notes = append(notes, fmt.Sprintf("%s of idle is hosts that no stage held anything of", bill.Unused))
	}
	if sum.Wasted > 0 && bill.Attempts > 0 {
		notes = append(notes, fmt.Sprintf("wasted is the part of pool and function that attempts took which did not "+
			"succeed: %s", percent(sum.Wasted.USD()/bill.Attempts.USD())))
	}
	if sum.Reused > 0 {
		notes = append(notes, Count(sum.Reused, "result")+" of earlier runs cost nothing again")
	}
	if len(notes) == 0 {
		return nil
	}
	lines := []string{""}
	for _, note := range notes {
		lines = append(lines, s.paint(dim, note))
	}
	return lines
}

// incomplete says of which time not all is known.
func incomplete(gap ledger.Gap) string {
	if gap.Since.IsZero() {
		return "not complete before " + moment(gap.Until) + ": what told of it is gone"
	}
	return "not complete from " + moment(gap.Since) + " to " + moment(gap.Until) + ": what told of it is gone"
}

// period says what time a bill is about.
func period(bill ledger.Bill, all bool) string {
	text := "from " + moment(bill.Since) + " to " + moment(bill.Until)
	if all && len(bill.Lines) > 0 {
		text += " (nothing is known of before)"
	}
	return text
}

// moment writes a time of the day and the day, as the reader's clock shows it.
func moment(at time.Time) string { return at.Local().Format(time.DateTime) }

// percent writes a share: "12%", "0.4%".
func percent(share float64) string {
	switch {
	case share <= 0:
		return "0%"
	case share < 0.1:
		return strconv.FormatFloat(share*100, 'f', 1, 64) + "%"
	default:
		return strconv.FormatFloat(share*100, 'f', 0, 64) + "%"
	}
}
