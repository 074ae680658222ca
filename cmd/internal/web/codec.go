package web

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

// codecExample is the number 7 as Temporal has it in clear.
func codecExample() coded {
	return coded{Payloads: []codedPayload{{
		Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: []byte("7"),
	}}}
}
