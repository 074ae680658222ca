package web

import (
	"net/http"

	"github.com/spillway-ml/spillway/activities/retention"
)

// collectionBody is the body of POST /api/v1/collections.
type collectionBody struct {
	// DryRun removes nothing and says what would go.
	DryRun bool `json:"dry_run,omitempty"`
}

// collect answers POST /api/v1/collections once the collection is over.
func (s *Server) collect(r *http.Request) (collection retention.Collection, err error) {
	var body collectionBody
	if err := decodeBody(r, &body); err != nil {
		return collection, err
	}
	collection, err = s.engine.Collect(r.Context(), body.DryRun)
	collection.Reasons, collection.Runs = notNil(collection.Reasons), notNil(collection.Runs)
	collection.Removed = notNil(collection.Removed)
	return collection, err
}
