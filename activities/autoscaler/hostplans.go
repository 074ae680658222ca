package autoscaler

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"time"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// hostPlans writes what each host obeys of the plan in force, where that has changed. It belongs to one term.
//
// A leader first learns the revisions of all that there is, and replaces each that it writes by compare-and-set; so one
// that was deposed, and that had a plan on its way to hosts, writes nothing over what the next one has written.
// The zero value has learnt nothing.
type hostPlans struct {
	store   HostPlanStore // nil where hosts read the whole plan
	known   bool          // the revisions of all that there is are
	written map[string]hostPlan
}

// hostPlan is what was written last for a host.
type hostPlan struct {
	revision uint64
	content  [sha256.Size]byte // zero where another leader has written it
}

// behind reports whether hosts may have another plan than the one that was last given to write.
func (h *hostPlans) behind() bool { return h.store != nil && !h.known }

// write has these hosts obey plan, which is in force, and removes what there is of others. After an error it is behind.
func (h *hostPlans) write(ctx context.Context, plan predictor.Plan, hosts []predictor.Host) error {
	if h.store == nil {
		return nil
	}
	if !h.known {
		revisions, err := h.store.HostPlans(ctx)
		if err != nil {
			return err
		}
		h.written = make(map[string]hostPlan, len(revisions))
		for host, revision := range revisions {
			h.written[host] = hostPlan{revision: revision}
		}
	}
	changed, contents, err := h.changes(plan, hosts)
	if err != nil {
		return err
	}
	h.known = false
	if len(changed) > 0 {
		if err := h.store.ReplaceHostPlans(ctx, changed); err != nil {
			return err
		}
	}
	h.known = true
	for i, one := range changed {
		h.written[one.Host] = hostPlan{one.Revision, contents[i]}
		if one.Gone {
			delete(h.written, one.Host)
		}
	}
	return nil
}

// changes are what is to be written, and its digests.
func (h *hostPlans) changes(
	plan predictor.Plan, hosts []predictor.Host,
) (changed []loop.HostPlan, contents [][sha256.Size]byte, err error) {
	var names []string
	for _, host := range hosts {
		if wire.HasHostPlan(host.ID) {
			names = append(names, host.ID)
		}
	}
	parts := plan.Split(names)
	for _, name := range names {
		part := parts[name]
		bare := part
		bare.Term, bare.Tick, bare.At = 0, 0, time.Time{} // which are others in every plan
		text, err := json.Marshal(bare)
		if err != nil {
			return nil, nil, err
		}
		content := sha256.Sum256(text)
		if before, known := h.written[name]; !known || before.content != content {
			changed = append(changed, loop.HostPlan{Host: name, Plan: part, Revision: before.revision})
			contents = append(contents, content)
		}
	}
	for name, before := range h.written {
		if _, there := parts[name]; !there {
			changed = append(changed, loop.HostPlan{Host: name, Revision: before.revision, Gone: true})
			contents = append(contents, [sha256.Size]byte{})
		}
	}
	return changed, contents, nil
}
