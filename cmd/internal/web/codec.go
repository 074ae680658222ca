package web

import (
	"net/http"

	"github.com/spillway-ml/spillway/activities/access"
)

// codecLimit bounds what is encrypted or decrypted at a time, in bytes: a page of a history has at most 4 MiB.
const codecLimit = 32 << 20

// coded are payloads of Temporal, in its form of JSON: https://github.com/temporalio/api, temporal/api/common/v1.
type coded struct {
	Payloads []codedPayload `json:"payloads"`
}

type codedPayload struct {
	// Metadata and Data are bytes as base64.
	Metadata map[string][]byte `json:"metadata,omitempty"`
	Data     []byte            `json:"data,omitempty"`
}

// codecRoutes are what Temporal calls a codec server, for its command line and for UIs that may ask here.
func codecRoutes(codec http.Handler) []route {
	if codec == nil {
		return nil
	}
	example := coded{Payloads: []codedPayload{{
		Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: []byte("7"),
	}}}
	of := func(verb, summary string) route {
		return route{
			method: http.MethodPost, path: "/api/v1/codec/" + verb, summary: summary, body: example,
			bodyKind: "application/json", maxBody: codecLimit, kinds: []string{"application/json"},
			needs: access.Operator, asks: true, silent: true, handler: codec.ServeHTTP,
		}
	}
	return []route{
		of("decode", "Decrypts payloads, and fetches those that were too large for a history, for Temporal's own tools."),
		of("encode", "Encrypts payloads for Temporal's own tools."),
		of("download", "Fetches payloads that were too large for a history, for Temporal's own tools."),
	}
}
