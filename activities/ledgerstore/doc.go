// Package ledgerstore keeps who spent what, in a database of its own: what a Record, a reuse and a host's account say
// is written there once, and bills are answered from it.
//
//	s, err := ledgerstore.Open(ctx, path, nil)
//	go s.Keep(ctx, js, alert)                 // follows the loop's stream
//	err = s.Reach(ctx, sequence)              // all up to there was taken in
//	bill, err := s.Bill(ctx, request)
//
// The database is SQLite; tables and queries are such that PostgreSQL takes them too. Amounts are whole picodollars in
// 64 bits. A sum over many rows is made of two, of the whole dollars and of the rest, so that it neither overflows nor
// is rounded.
package ledgerstore
