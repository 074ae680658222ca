package frontier_test

import (
	"testing"

	"github.com/spillway-ml/spillway/predictor/frontier"
)

func TestAStageIsPaidAsItsVenueIs(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name     string
		choice   frontier.Choice
		tasks    int
		want     frontier.Option
		possible bool
	}{
		{
			name:   "functions are paid while they start and work: 12 start, 27 work, in three waves",
			choice: frontier.Choice{Seconds: 10, Start: 2, Workers: 3, AtOnce: 4, Price: 5, Request: 7},
			tasks:  9, want: frontier.Option{Seconds: 32, Cost: 5*(12*2+27*10) + 27*7}, possible: true,
		},
		{
			name: "hosts are paid while others work",
			choice: frontier.Choice{
				Seconds: 10, Start: 2, Workers: 3, AtOnce: 4, Price: 5, Held: true, Capacity: 2, Spread: 0.1,
			},
			tasks: 9, want: frontier.Option{Seconds: 32, Cost: 5 * 12 * 32, Capacity: 2, Spread: 0.1}, possible: true,
		},
		{
			name:   "and for a minimum",
			choice: frontier.Choice{Seconds: 10, Workers: 1, AtOnce: 1, Price: 5, Held: true, MinimumSeconds: 60},
			tasks:  1, want: frontier.Option{Seconds: 10, Cost: 300}, possible: true,
		},
		{
			name:   "no more is held than there are tasks",
			choice: frontier.Choice{Seconds: 10, Workers: 1, AtOnce: 100, Price: 5, Held: true},
			tasks:  2, want: frontier.Option{Seconds: 10, Cost: 100}, possible: true,
		},
		{name: "there is no room", choice: frontier.Choice{Seconds: 10, Workers: 8, Price: 5}, tasks: 2},
	} {
		got, possible := row.choice.Option(row.tasks)
		if got != row.want || possible != row.possible {
			t.Errorf("%s: %+v, %v, want %+v, %v", row.name, got, possible, row.want, row.possible)
		}
	}
}
