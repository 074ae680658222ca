package autoscaler

import (
	"context"
	"errors"
	"fmt"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
)

// legacyWorkflow is the ID of the workflow whose activity led the loop until 2026-11-22.
const legacyWorkflow = "spillway-autoscaler"

// EndLegacyWorkflow ends what led the loop in a namespace that an engine of before 2026-11-22 has used: a workflow, of
// which nothing is left here to run it. Where there is none, that is fine.
func EndLegacyWorkflow(ctx context.Context, c client.Client) error {
	err := c.TerminateWorkflow(ctx, legacyWorkflow, "", "the lead is a lease in NATS now")
	var none *serviceerror.NotFound
	if err != nil && !errors.As(err, &none) {
		return fmt.Errorf("end the autoscaler's workflow of an earlier engine: %w", err)
	}
	return nil
}
