package ledgerstore

import (
	"context"
	"errors"
	"fmt"
)

// Probe looks whether a database of PostgreSQL can have the ledger, as OpenPostgres would find out, and changes nothing
// there. It returns what it has found, for people, without a secret.
func Probe(ctx context.Context, where func() (string, error)) (found string, err error) {
	config, err := parseURL(where)
	if err != nil {
		return "", err
	}
	s := &server{where: where, config: config}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	db, readers, err := s.connect(ctx)
	if err != nil {
		return "", fmt.Errorf("look at the ledger %s: %w", s, explain(err))
	}
	defer func() { err = errors.Join(err, closeBoth(db, readers)) }()
	var version string
	var makes, reads bool
	if err := db.QueryRowContext(ctx, `SELECT current_setting('server_version'),
		COALESCE(has_schema_privilege(current_schema(), 'CREATE'), FALSE),
		current_setting('transaction_read_only')::boolean`).Scan(&version, &makes, &reads); err != nil {
		return "", fmt.Errorf("look at the ledger %s: %w", s, explain(err))
	}
	schema, err := schemaOf(ctx, db, postgresDialect)
	if err == nil {
		err = checkSchema(schema)
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("look at the ledger %s: %w", s, explain(err))
	case reads:
		return "", fmt.Errorf("the ledger %s: %s", s, hints["25006"])
	case schema < len(migrations) && !makes:
		return "", fmt.Errorf("the ledger %s: its user may make no tables: %s", s, hints["42501"])
	case schema == 0:
		return fmt.Sprintf("%s (version %s): no ledger yet, and its tables can be made", s, version), nil
	default:
		return fmt.Sprintf("%s (version %s): a ledger of schema %d", s, version, schema), nil
	}
}
