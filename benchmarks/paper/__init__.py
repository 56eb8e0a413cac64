"""The paper's study: models to 1.6 T parameters, all searches, seeds, ablation; a page with plots."""
