package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestMain makes the test binary the child of its own tests.
func TestMain(m *testing.M) {
	if os.Getenv(wire.RoleEnvironment) == wire.RoleChild {
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// kept is what an attempt leaves to the next.
var kept []byte

// order is the input of every test's stage.
type order struct {
	Do    string         `json:"do"`
	Bytes quantity.Bytes `json:"bytes,omitempty"`
}

// report is its output.
type report struct {
	PID    int            `json:"pid"`
	Env    []string       `json:"env,omitempty"`
	Server string         `json:"server,omitempty"`
	Resume activities.Ref `json:"resume"`
	Grant  quantity.Size  `json:"grant"`
	Past   int            `json:"past,omitempty"`
	ToLoss time.Duration  `json:"to_loss,omitempty"`
}

// serve is a stage that does what its input orders.
func serve() error {
	if os.Getenv("TEST_NEVER_READY") != "" {
		return errors.New("the model file is missing")
	}
	if os.Getenv("TEST_STUCK") != "" {
		fmt.Fprintln(os.Stderr, "looking for the model")
		select {}
	}
	out := json.NewEncoder(os.NewFile(wire.ChildOutput, "out"))
	messages := make(chan wire.ToChild)
	go func() {
		lines := bufio.NewScanner(os.NewFile(wire.ChildInput, "in"))
		lines.Buffer(nil, maxMessage)
		for lines.Scan() {
			var message wire.ToChild
			if json.Unmarshal(lines.Bytes(), &message) == nil {
				messages <- message
			}
		}
		close(messages)
	}()
	if err := out.Encode(wire.FromChild{Ready: true}); err != nil {
		return err
	}
	for message := range messages {
		if message.Propose != nil {
			if err := out.Encode(wire.FromChild{Recommended: recommend(*message.Propose)}); err != nil {
				return err
			}
			continue
		}
		answer := work(*message.Start, message.Server, messages, out)
		if _, err := fmt.Print(wire.OutputEnd); err != nil {
			return err
		}
		if _, err := fmt.Fprint(os.Stderr, wire.OutputEnd); err != nil {
			return err
		}
		if err := out.Encode(wire.FromChild{Done: &answer}); err != nil {
			return err
		}
	}
	return nil
}

// recommend wants what the order says, for tests of recommenders.
func recommend(asked wire.ProposeSize) *wire.Recommended {
	var order order
	if err := json.Unmarshal(asked.Input, &order); err != nil || order.Do == "refuse" {
		return &wire.Recommended{Error: "no opinion"}
	}
	if order.Do == "silent" {
		select {}
	}
	return &wire.Recommended{Size: quantity.Size{Memory: order.Bytes * quantity.Bytes(asked.Proposal.Attempt)}}
}

func work(start wire.StartAttempt, server string, messages <-chan wire.ToChild, out *json.Encoder) wire.Answer {
	var order order
	if err := json.Unmarshal(start.Input, &order); err != nil {
		return wire.Answer{Error: &wire.StageFailure{Message: err.Error(), Permanent: true}}
	}
	tell := func(message wire.FromChild) {
		if err := out.Encode(message); err != nil {
			os.Exit(4)
		}
	}
	report := report{
		PID: os.Getpid(), Resume: start.Resume, Grant: start.Grant, Past: len(start.Past), ToLoss: start.TimeToLoss,
		Server: server,
	}
	switch order.Do {
	case "fail":
		return wire.Answer{Error: &wire.StageFailure{Message: "boom"}}
	case "panic":
		return wire.Answer{Error: &wire.StageFailure{Message: "boom", Stack: "main.go:1"}}
	case "exit":
		fmt.Println("last words")
		os.Exit(3)
	case "crash":
		panic("in a goroutine of its own")
	case "garble":
		if _, err := os.NewFile(wire.ChildOutput, "out").WriteString("hello\n"); err != nil {
			os.Exit(4)
		}
		select {}
	case "need": // as much memory as it says
		if start.Grant.Memory < order.Bytes {
			return wire.Answer{Error: &wire.StageFailure{Message: "no memory", OutOfMemory: true}}
		}
	case "use":
		block := make([]byte, order.Bytes)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		tell(wire.FromChild{Progress: &wire.Progress{Step: int(block[0])}})
	case "keep": // for as long as it lives
		kept = make([]byte, order.Bytes)
		for i := 0; i < len(kept); i += 4096 {
			kept[i] = 1
		}
	case "print":
		fmt.Printf("%d to out\n", start.Attempt)
		fmt.Fprint(os.Stderr, "to err, without an end")
	case "environment":
		report.Env = os.Environ()
	case "resume":
		if start.Attempt == 1 {
			tell(wire.FromChild{Checkpoint: &activities.Ref{Digest: "first"}})
			os.Exit(3)
		}
	case "learn": // and stop in the middle, without a word more the second time
		if start.Attempt == 1 {
			for step := 1; step <= 9; step++ {
				tell(wire.FromChild{Progress: &wire.Progress{Step: step, Metrics: map[string]float64{"loss": 1 / float64(step)}}})
			}
			os.Exit(3)
		}
	case "train": // until it is told to stop, and with a last word that is none
		tell(wire.FromChild{Training: &predictor.Training{Executor: "gomlx", Steps: 1, TotalSteps: 2}})
		for message := range messages {
			if message.Limit != nil {
				break
			}
		}
		tell(wire.FromChild{Training: &predictor.Training{Executor: "gomlx", Steps: 2, TotalSteps: 2}})
		tell(wire.FromChild{Training: &predictor.Training{Steps: -1}})
	case "hang": // and ignore what one can ignore
		signal.Ignore(syscall.SIGTERM)
		tell(wire.FromChild{Progress: &wire.Progress{Step: 1}})
		select {}
	case "wait":
		tell(wire.FromChild{Progress: &wire.Progress{Step: 1}})
		for message := range messages {
			if message.Cancel {
				return wire.Answer{Error: &wire.StageFailure{Message: "context canceled"}}
			}
			if message.Limit != nil {
				report.Grant = *message.Limit
				break
			}
		}
	}
	encoded, err := json.Marshal(report)
	if err != nil {
		return wire.Answer{Error: &wire.StageFailure{Message: err.Error()}}
	}
	return wire.Answer{Output: encoded, Wall: time.Millisecond, Written: 5}
}

// builds says that the test binary is every build but "missing".
type builds struct{}

func (builds) Path(_ context.Context, _, digest string) (string, error) {
	if digest == "missing" {
		return "", errors.New("no such build")
	}
	return os.Executable()
}
