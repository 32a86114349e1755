"""One append-only log per run: vocabulary, codec, blobs, cursor, folds, stores."""
