package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
	"github.com/spillway-ml/spillway/workers/slot"
)

// recommendTimeout is how long a stage's own recommender may take.
const recommendTimeout = 2 * time.Second

// errSilent says that a recommender did not answer.
var errSilent = errors.New("it did not answer in time")

// recommended asks the app for the size of an attempt that would be given proposed, in a child that is used for nothing
// else meanwhile and holds as much. Whatever goes wrong, the attempt is given what was proposed, and expected says why.
func (a *Agent) recommended(
	ctx context.Context, try *slot.Attempt, input json.RawMessage, proposed quantity.Size, expected predictor.Prediction,
) (quantity.Size, predictor.Prediction) {
	task, need := try.Task, try.Need()
	answer, err := a.ask(ctx, task, proposed, wire.ProposeSize{Task: task, Input: input, Proposal: wire.Proposal{
		Size: proposed, Expected: expected.Memory, Source: expected.Source, Input: task.Input, Attempt: try.Number,
		OutOfMemory: need.OutOfMemory, LargestFailed: need.LargestFailed, Capacity: a.capacity(),
	}})
	if err == nil && answer.Error != "" {
		err = errors.New(answer.Error)
	}
	size := answer.Size
	if err == nil && (size.CPU < 0 || size.Memory < 0 || size.GPU < 0 || size.GPUMemory < 0) {
		err = fmt.Errorf("it wants %s, which is negative", size)
	}
	if err != nil {
		expected.Source += fmt.Sprintf("; the stage's recommender was not followed: %v", err)
		return proposed, expected
	}
	if size.DeviceClass == "" {
		size.DeviceClass = proposed.DeviceClass
	}
	for _, amount := range []struct{ wanted, proposed *quantity.Milli }{
		{&size.CPU, &proposed.CPU},
		{&size.GPU, &proposed.GPU},
	} {
		if *amount.wanted == 0 {
			*amount.wanted = *amount.proposed
		}
	}
	for _, amount := range []struct{ wanted, proposed *quantity.Bytes }{
		{&size.Memory, &proposed.Memory},
		{&size.GPUMemory, &proposed.GPUMemory},
	} {
		if *amount.wanted == 0 {
			*amount.wanted = *amount.proposed
		}
	}
	expected.Source = "the stage's recommender; proposed: " + expected.Source
	return size.AtMost(a.base), expected
}

// ask puts one question to a child of this size, once there is room for it. The attempt asks for its own room after
// that: one that held the room of its question and wanted more could wait for another that does the same.
func (a *Agent) ask(
	ctx context.Context, task wire.Task, size quantity.Size, question wire.ProposeSize,
) (wire.Recommended, error) {
	size = size.WithGPUs(quantity.GPUs{}) // an answer takes none
	room, err := a.admission.reserve(ctx, size)
	if err != nil {
		return wire.Recommended{}, err
	}
	defer room.release()
	c, _, _, err := a.children.take(ctx, build{task.Stage.App, task.Stage.Build}, task.Stage.Name,
		a.gpus.visible(&gpuHold{}), func() quantity.Size { return size }, func(*enforce.Group) {})
	if err != nil {
		return wire.Recommended{}, err
	}
	if err := c.send(wire.ToChild{Propose: &question}); err != nil {
		a.children.stop(ctx, c)
		return wire.Recommended{}, err
	}
	timer := time.NewTimer(recommendTimeout)
	defer timer.Stop()
	for {
		select {
		case message, open := <-c.messages:
			switch {
			case !open:
				a.children.stop(ctx, c)
				return wire.Recommended{}, fmt.Errorf("its process ended: %s", c.process.ProcessState)
			case message.Recommended != nil:
				a.children.give(ctx, c)
				return *message.Recommended, nil
			}
		case <-timer.C: // it may answer later, in the middle of an attempt
			a.children.stop(ctx, c)
			return wire.Recommended{}, errSilent
		case <-ctx.Done():
			a.children.stop(ctx, c)
			return wire.Recommended{}, context.Cause(ctx)
		}
	}
}
