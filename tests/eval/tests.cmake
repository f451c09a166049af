iwp_test_folder(eval LINK iwp_eval iwp_base)
