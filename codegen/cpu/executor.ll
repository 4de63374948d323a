; Made from executor.c by `python -m tilestitch.codegen.cpu.executor`; do not edit.
%struct.Team = type { i64, ptr, i64, i64, i64, ptr, i64, ptr, i64, i64, [48 x i8], i64, [56 x i8], i64, [56 x i8], i32, i32, i32, [52 x i8] }
%struct.timespec = type { i64, i64 }
%struct.Launch = type { ptr, ptr, i64, i64 }
%struct.Run = type { ptr, ptr, i64, ptr }

; Function Attrs: mustprogress nofree norecurse nosync nounwind willreturn memory(none)
define i64 @ts_team_bytes() local_unnamed_addr #0 {
entry:
  ret i64 320
}

; Function Attrs: mustprogress nofree norecurse nosync nounwind willreturn memory(argmem: write)
define void @ts_init(ptr nocapture noundef writeonly %team, i64 noundef %threads, ptr noundef %scratch, i64 noundef %scratch_bytes, i64 noundef %spins, i64 noundef %futex) local_unnamed_addr #1 {
entry:
  store i64 %threads, ptr %team, align 64
  %scratch2 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 1
  store ptr %scratch, ptr %scratch2, align 8
  %scratch_bytes3 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 2
  store i64 %scratch_bytes, ptr %scratch_bytes3, align 16
  %spins4 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 3
  store i64 %spins, ptr %spins4, align 8
  %futex5 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 4
  store i64 %futex, ptr %futex5, align 32
  ret void
}

; Function Attrs: nounwind
define void @ts_worker(ptr noundef %team, i64 noundef %thread) local_unnamed_addr #2 {
entry:
  %stopped = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 17
  %spins.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 3
  %ticket.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 11
  %sleepers.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 16
  %wakeups3.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 15
  %futex.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 4
  %call4 = tail call fastcc i64 @work(ptr noundef %team, i64 noundef %thread) #5
  %0 = load atomic i32, ptr %stopped seq_cst, align 8
  %tobool.not.not5 = icmp eq i32 %0, 0
  br i1 %tobool.not.not5, label %if.end, label %return

if.end:
  %call6 = phi i64 [ %call, %cleanup ], [ %call4, %entry ]
  %1 = load i64, ptr %spins.i, align 8
  %cmp26.i = icmp sgt i64 %1, 0
  br i1 %cmp26.i, label %for.body.i, label %for.end.i

for.body.i:
  %i.027.i = phi i64 [ %inc.i, %if.end.i ], [ 0, %if.end ]
  %2 = load atomic i64, ptr %ticket.i monotonic, align 64
  %cmp1.not.i = icmp eq i64 %2, %call6
  br i1 %cmp1.not.i, label %if.end.i, label %cleanup

if.end.i:
  tail call void asm sideeffect "pause", "~{dirflag},~{fpsr},~{flags}"() #6
  %inc.i = add nuw nsw i64 %i.027.i, 1
  %3 = load i64, ptr %spins.i, align 8
  %cmp.i = icmp slt i64 %inc.i, %3
  br i1 %cmp.i, label %for.body.i, label %for.end.i

for.end.i:
  %4 = atomicrmw add ptr %sleepers.i, i32 1 seq_cst, align 4
  %5 = load atomic i32, ptr %wakeups3.i seq_cst, align 64
  %6 = load atomic i64, ptr %ticket.i seq_cst, align 64
  %cmp7.i = icmp eq i64 %6, %call6
  br i1 %cmp7.i, label %if.then8.i, label %if.end10.i

if.then8.i:
  %7 = load i64, ptr %futex.i, align 32
  %call.i = tail call i64 (i64, ...) @syscall(i64 noundef %7, ptr noundef nonnull %wakeups3.i, i32 noundef 128, i32 noundef %5, i32 noundef 0, i32 noundef 0, i32 noundef 0) #7
  br label %if.end10.i

if.end10.i:
  %8 = atomicrmw sub ptr %sleepers.i, i32 1 seq_cst, align 4
  br label %cleanup

cleanup:
  %call = tail call fastcc i64 @work(ptr noundef %team, i64 noundef %thread) #5
  %9 = load atomic i32, ptr %stopped seq_cst, align 8
  %tobool.not.not = icmp eq i32 %9, 0
  br i1 %tobool.not.not, label %if.end, label %return

return:
  ret void
}

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.start.p0(i64 immarg, ptr nocapture) #3

; Function Attrs: nounwind
define internal fastcc i64 @work(ptr noundef %team, i64 noundef %thread) unnamed_addr #2 {
entry:
  %now.i = alloca %struct.timespec, align 8
  %ticket1 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 11
  %0 = load atomic i64, ptr %ticket1 acquire, align 64
  %launches = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 5
  %current = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 8
  %tasks = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 9
  %scratch.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 1
  %scratch_bytes.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 2
  %unfinished = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 13
  %times_ns.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 7
  %nanoseconds.i = getelementptr inbounds %struct.timespec, ptr %now.i, i64 0, i32 1
  br label %while.cond.outer

while.cond.outer:
  %done.1.ph = phi i64 [ 0, %entry ], [ %done.1.ph.be, %while.cond.outer.backedge ]
  %ticket.1.ph = phi i64 [ %0, %entry ], [ %ticket.1.ph.be, %while.cond.outer.backedge ]
  br label %while.cond

while.cond:
  %ticket.1 = phi i64 [ %3, %while.body ], [ %ticket.1.ph, %while.cond.outer ]
  %and.i50 = and i64 %ticket.1, 2147483647
  %tobool.not = icmp eq i64 %and.i50, 0
  br i1 %tobool.not, label %while.end, label %while.body

while.body:
  %sub = add i64 %ticket.1, -1
  %1 = cmpxchg weak ptr %ticket1, i64 %ticket.1, i64 %sub acq_rel acquire, align 8
  %2 = extractvalue { i64, i1 } %1, 1
  %3 = extractvalue { i64, i1 } %1, 0
  br i1 %2, label %if.end, label %while.cond

if.end:
  %4 = load ptr, ptr %launches, align 8
  %5 = load i64, ptr %current, align 64
  %arrayidx = getelementptr inbounds %struct.Launch, ptr %4, i64 %5
  %6 = load i64, ptr %tasks, align 8
  %sub5 = sub nsw i64 %6, %and.i50
  %tasks9.i = getelementptr inbounds %struct.Launch, ptr %4, i64 %5, i32 2
  %7 = load i64, ptr %tasks9.i, align 8
  %cmp.not10.i = icmp sgt i64 %7, %sub5
  br i1 %cmp.not10.i, label %run_task.exit, label %for.body.i

for.body.i:
  %8 = phi i64 [ %9, %for.body.i ], [ %7, %if.end ]
  %launch.addr.012.i = phi ptr [ %incdec.ptr.i, %for.body.i ], [ %arrayidx, %if.end ]
  %task.addr.011.i = phi i64 [ %sub.i, %for.body.i ], [ %sub5, %if.end ]
  %sub.i = sub nsw i64 %task.addr.011.i, %8
  %incdec.ptr.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.012.i, i64 1
  %tasks.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.012.i, i64 1, i32 2
  %9 = load i64, ptr %tasks.i, align 8
  %cmp.not.i = icmp slt i64 %sub.i, %9
  br i1 %cmp.not.i, label %run_task.exit, label %for.body.i

run_task.exit:
  %task.addr.0.lcssa.i = phi i64 [ %sub5, %if.end ], [ %sub.i, %for.body.i ]
  %launch.addr.0.lcssa.i = phi ptr [ %arrayidx, %if.end ], [ %incdec.ptr.i, %for.body.i ]
  %10 = load ptr, ptr %launch.addr.0.lcssa.i, align 8
  %args.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.0.lcssa.i, i64 0, i32 1
  %11 = load ptr, ptr %args.i, align 8
  %12 = load ptr, ptr %scratch.i, align 8
  %13 = load i64, ptr %scratch_bytes.i, align 16
  %mul.i = mul nsw i64 %13, %thread
  %add.ptr.i = getelementptr inbounds i8, ptr %12, i64 %mul.i
  call void %10(ptr noundef %11, i64 noundef %task.addr.0.lcssa.i, ptr noundef %add.ptr.i) #7
  %inc = add nuw nsw i64 %done.1.ph, 1
  %14 = load atomic i64, ptr %ticket1 acquire, align 64
  br label %while.cond.outer.backedge

while.cond.outer.backedge:
  %done.1.ph.be = phi i64 [ %inc, %run_task.exit ], [ 0, %if.end20 ]
  %ticket.1.ph.be = phi i64 [ %14, %run_task.exit ], [ %30, %if.end20 ]
  br label %while.cond.outer

while.end:
  %tobool8.not = icmp eq i64 %done.1.ph, 0
  br i1 %tobool8.not, label %if.then9, label %if.end10

if.then9:
  ret i64 %ticket.1

if.end10:
  %15 = load i64, ptr %current, align 64
  %16 = load ptr, ptr %launches, align 8
  %together14 = getelementptr inbounds %struct.Launch, ptr %16, i64 %15, i32 3
  %17 = load i64, ptr %together14, align 8
  %18 = atomicrmw sub ptr %unfinished, i64 %done.1.ph acq_rel, align 8
  %cmp = icmp eq i64 %18, %done.1.ph
  br i1 %cmp, label %if.then18, label %if.end20

if.then18:
  %19 = load ptr, ptr %times_ns.i, align 8
  %tobool.not.i = icmp eq ptr %19, null
  br i1 %tobool.not.i, label %record_time.exit, label %if.end.i

if.end.i:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %now.i) #6
  %call.i = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %now.i) #7
  %cmp6.i = icmp sgt i64 %17, 0
  br i1 %cmp6.i, label %for.body.i49.preheader, label %for.cond.cleanup.i

for.body.i49.preheader:
  %xtraiter = and i64 %17, 1
  %20 = icmp eq i64 %17, 1
  br i1 %20, label %for.cond.cleanup.i.loopexit.unr-lcssa, label %for.body.i49.preheader.new

for.body.i49.preheader.new:
  %unroll_iter = and i64 %17, -2
  br label %for.body.i49

for.cond.cleanup.i.loopexit.unr-lcssa:
  %i.07.i.unr = phi i64 [ 0, %for.body.i49.preheader ], [ %add.1, %for.body.i49 ]
  %lcmp.mod.not = icmp eq i64 %xtraiter, 0
  br i1 %lcmp.mod.not, label %for.cond.cleanup.i, label %for.body.i49.epil

for.body.i49.epil:
  %21 = load i64, ptr %now.i, align 8
  %mul.i48.epil = mul nsw i64 %21, 1000000000
  %22 = load i64, ptr %nanoseconds.i, align 8
  %add.i.epil = add nsw i64 %mul.i48.epil, %22
  %23 = load ptr, ptr %times_ns.i, align 8
  %add.epil = add nuw nsw i64 %i.07.i.unr, 1
  %add2.i.epil = add i64 %add.epil, %15
  %arrayidx.i.epil = getelementptr inbounds i64, ptr %23, i64 %add2.i.epil
  store i64 %add.i.epil, ptr %arrayidx.i.epil, align 8
  br label %for.cond.cleanup.i

for.cond.cleanup.i:
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %now.i) #6
  br label %record_time.exit

for.body.i49:
  %i.07.i = phi i64 [ 0, %for.body.i49.preheader.new ], [ %add.1, %for.body.i49 ]
  %niter = phi i64 [ 0, %for.body.i49.preheader.new ], [ %niter.next.1, %for.body.i49 ]
  %24 = load i64, ptr %now.i, align 8
  %mul.i48 = mul nsw i64 %24, 1000000000
  %25 = load i64, ptr %nanoseconds.i, align 8
  %add.i = add nsw i64 %mul.i48, %25
  %26 = load ptr, ptr %times_ns.i, align 8
  %add = or i64 %i.07.i, 1
  %add2.i = add i64 %add, %15
  %arrayidx.i = getelementptr inbounds i64, ptr %26, i64 %add2.i
  store i64 %add.i, ptr %arrayidx.i, align 8
  %27 = load i64, ptr %now.i, align 8
  %mul.i48.1 = mul nsw i64 %27, 1000000000
  %28 = load i64, ptr %nanoseconds.i, align 8
  %add.i.1 = add nsw i64 %mul.i48.1, %28
  %29 = load ptr, ptr %times_ns.i, align 8
  %add.1 = add nuw nsw i64 %i.07.i, 2
  %add2.i.1 = add i64 %add.1, %15
  %arrayidx.i.1 = getelementptr inbounds i64, ptr %29, i64 %add2.i.1
  store i64 %add.i.1, ptr %arrayidx.i.1, align 8
  %niter.next.1 = add nuw i64 %niter, 2
  %niter.ncmp.1 = icmp eq i64 %niter.next.1, %unroll_iter
  br i1 %niter.ncmp.1, label %for.cond.cleanup.i.loopexit.unr-lcssa, label %for.body.i49

record_time.exit:
  %add19 = add nsw i64 %17, %15
  call fastcc void @advance(ptr noundef nonnull %team, i64 noundef %add19, i64 noundef %thread) #5
  br label %if.end20

if.end20:
  %30 = load atomic i64, ptr %ticket1 acquire, align 64
  br label %while.cond.outer.backedge
}

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.end.p0(i64 immarg, ptr nocapture) #3

; Function Attrs: nounwind
define void @ts_run(ptr nocapture noundef readonly %run) local_unnamed_addr #2 {
entry:
  %now.i42 = alloca %struct.timespec, align 8
  %now.i = alloca %struct.timespec, align 8
  %0 = load ptr, ptr %run, align 8
  %launches2 = getelementptr inbounds %struct.Run, ptr %run, i64 0, i32 1
  %1 = load ptr, ptr %launches2, align 8
  %launches3 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 5
  store ptr %1, ptr %launches3, align 8
  %count4 = getelementptr inbounds %struct.Run, ptr %run, i64 0, i32 2
  %2 = load i64, ptr %count4, align 8
  %count5 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 6
  store i64 %2, ptr %count5, align 16
  %times_ns = getelementptr inbounds %struct.Run, ptr %run, i64 0, i32 3
  %3 = load ptr, ptr %times_ns, align 8
  %times_ns6 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 7
  store ptr %3, ptr %times_ns6, align 8
  %tobool.not.i = icmp eq ptr %3, null
  br i1 %tobool.not.i, label %record_time.exit, label %if.end.i

if.end.i:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %now.i) #6
  %call.i = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %now.i) #7
  %nanoseconds.i = getelementptr inbounds %struct.timespec, ptr %now.i, i64 0, i32 1
  %4 = load i64, ptr %now.i, align 8
  %mul.i = mul nsw i64 %4, 1000000000
  %5 = load i64, ptr %nanoseconds.i, align 8
  %add.i = add nsw i64 %mul.i, %5
  %6 = load ptr, ptr %times_ns6, align 8
  store i64 %add.i, ptr %6, align 8
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %now.i) #6
  br label %record_time.exit

record_time.exit:
  %7 = load i64, ptr %0, align 64
  %cmp = icmp eq i64 %7, 1
  br i1 %cmp, label %for.cond.preheader, label %if.end

for.cond.preheader:
  %cmp769 = icmp sgt i64 %2, 0
  br i1 %cmp769, label %for.cond8.preheader.lr.ph, label %cleanup19

for.cond8.preheader.lr.ph:
  %scratch.i = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 1
  %nanoseconds.i47 = getelementptr inbounds %struct.timespec, ptr %now.i42, i64 0, i32 1
  br label %for.cond8.preheader

for.cond8.preheader:
  %i.070 = phi i64 [ 0, %for.cond8.preheader.lr.ph ], [ %add, %record_time.exit56 ]
  %tasks = getelementptr inbounds %struct.Launch, ptr %1, i64 %i.070, i32 2
  %8 = load i64, ptr %tasks, align 8
  %cmp967 = icmp sgt i64 %8, 0
  br i1 %cmp967, label %for.body11.lr.ph, label %for.cond.cleanup10

for.body11.lr.ph:
  %arrayidx = getelementptr inbounds %struct.Launch, ptr %1, i64 %i.070
  br label %for.body11

for.cond.cleanup10:
  %add = add nuw nsw i64 %i.070, 1
  %9 = load ptr, ptr %times_ns6, align 8
  %tobool.not.i44 = icmp eq ptr %9, null
  br i1 %tobool.not.i44, label %record_time.exit56, label %if.end.i46

if.end.i46:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %now.i42) #6
  %call.i45 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %now.i42) #7
  %10 = load i64, ptr %now.i42, align 8
  %mul.i50 = mul nsw i64 %10, 1000000000
  %11 = load i64, ptr %nanoseconds.i47, align 8
  %add.i51 = add nsw i64 %mul.i50, %11
  %12 = load ptr, ptr %times_ns6, align 8
  %arrayidx.i52 = getelementptr inbounds i64, ptr %12, i64 %add
  store i64 %add.i51, ptr %arrayidx.i52, align 8
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %now.i42) #6
  br label %record_time.exit56

record_time.exit56:
  %exitcond.not = icmp eq i64 %add, %2
  br i1 %exitcond.not, label %cleanup19, label %for.cond8.preheader

for.body11:
  %13 = phi i64 [ %8, %for.body11.lr.ph ], [ %19, %run_task.exit ]
  %task.068 = phi i64 [ 0, %for.body11.lr.ph ], [ %inc, %run_task.exit ]
  %cmp.not10.i = icmp sgt i64 %13, %task.068
  br i1 %cmp.not10.i, label %run_task.exit, label %for.body.i57

for.body.i57:
  %14 = phi i64 [ %15, %for.body.i57 ], [ %13, %for.body11 ]
  %launch.addr.012.i = phi ptr [ %incdec.ptr.i, %for.body.i57 ], [ %arrayidx, %for.body11 ]
  %task.addr.011.i = phi i64 [ %sub.i, %for.body.i57 ], [ %task.068, %for.body11 ]
  %sub.i = sub nsw i64 %task.addr.011.i, %14
  %incdec.ptr.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.012.i, i64 1
  %tasks.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.012.i, i64 1, i32 2
  %15 = load i64, ptr %tasks.i, align 8
  %cmp.not.i = icmp slt i64 %sub.i, %15
  br i1 %cmp.not.i, label %run_task.exit, label %for.body.i57

run_task.exit:
  %task.addr.0.lcssa.i = phi i64 [ %task.068, %for.body11 ], [ %sub.i, %for.body.i57 ]
  %launch.addr.0.lcssa.i = phi ptr [ %arrayidx, %for.body11 ], [ %incdec.ptr.i, %for.body.i57 ]
  %16 = load ptr, ptr %launch.addr.0.lcssa.i, align 8
  %args.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.0.lcssa.i, i64 0, i32 1
  %17 = load ptr, ptr %args.i, align 8
  %18 = load ptr, ptr %scratch.i, align 8
  call void %16(ptr noundef %17, i64 noundef %task.addr.0.lcssa.i, ptr noundef %18) #7
  %inc = add nuw nsw i64 %task.068, 1
  %19 = load i64, ptr %tasks, align 8
  %cmp9 = icmp slt i64 %inc, %19
  br i1 %cmp9, label %for.body11, label %for.cond.cleanup10

if.end:
  call fastcc void @advance(ptr noundef nonnull %0, i64 noundef 0, i64 noundef 0) #5
  %call63 = call fastcc i64 @work(ptr noundef nonnull %0, i64 noundef 0) #5
  %and64 = and i64 %call63, 2147483648
  %tobool.not65 = icmp eq i64 %and64, 0
  br i1 %tobool.not65, label %if.end18.lr.ph, label %cleanup19

if.end18.lr.ph:
  %spins.i = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 3
  %ticket.i = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 11
  %sleepers.i = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 16
  %wakeups3.i = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 15
  %futex.i = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 4
  br label %if.end18

if.end18:
  %call66 = phi i64 [ %call63, %if.end18.lr.ph ], [ %call, %wait_for_news.exit ]
  %20 = load i64, ptr %spins.i, align 8
  %cmp26.i = icmp sgt i64 %20, 0
  br i1 %cmp26.i, label %for.body.i58, label %for.end.i

for.body.i58:
  %i.027.i = phi i64 [ %inc.i59, %if.end.i60 ], [ 0, %if.end18 ]
  %21 = load atomic i64, ptr %ticket.i monotonic, align 64
  %cmp1.not.i = icmp eq i64 %21, %call66
  br i1 %cmp1.not.i, label %if.end.i60, label %wait_for_news.exit

if.end.i60:
  call void asm sideeffect "pause", "~{dirflag},~{fpsr},~{flags}"() #6
  %inc.i59 = add nuw nsw i64 %i.027.i, 1
  %22 = load i64, ptr %spins.i, align 8
  %cmp.i = icmp slt i64 %inc.i59, %22
  br i1 %cmp.i, label %for.body.i58, label %for.end.i

for.end.i:
  %23 = atomicrmw add ptr %sleepers.i, i32 1 seq_cst, align 4
  %24 = load atomic i32, ptr %wakeups3.i seq_cst, align 64
  %25 = load atomic i64, ptr %ticket.i seq_cst, align 64
  %cmp7.i = icmp eq i64 %25, %call66
  br i1 %cmp7.i, label %if.then8.i, label %if.end10.i

if.then8.i:
  %26 = load i64, ptr %futex.i, align 32
  %call.i61 = call i64 (i64, ...) @syscall(i64 noundef %26, ptr noundef nonnull %wakeups3.i, i32 noundef 128, i32 noundef %24, i32 noundef 0, i32 noundef 0, i32 noundef 0) #7
  br label %if.end10.i

if.end10.i:
  %27 = atomicrmw sub ptr %sleepers.i, i32 1 seq_cst, align 4
  br label %wait_for_news.exit

wait_for_news.exit:
  %call = call fastcc i64 @work(ptr noundef nonnull %0, i64 noundef 0) #5
  %and = and i64 %call, 2147483648
  %tobool.not = icmp eq i64 %and, 0
  br i1 %tobool.not, label %if.end18, label %cleanup19

cleanup19:
  ret void
}

; Function Attrs: nounwind
define internal fastcc void @advance(ptr noundef %team, i64 noundef %next, i64 noundef %thread) unnamed_addr #2 {
entry:
  %now.i = alloca %struct.timespec, align 8
  %count = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 6
  %0 = load i64, ptr %count, align 16
  %cmp75 = icmp sgt i64 %0, %next
  br i1 %cmp75, label %while.body.lr.ph, label %while.end

while.body.lr.ph:
  %launches = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 5
  %scratch.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 1
  %scratch_bytes.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 2
  %times_ns.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 7
  %nanoseconds.i = getelementptr inbounds %struct.timespec, ptr %now.i, i64 0, i32 1
  br label %while.body

while.body:
  %1 = phi i64 [ %0, %while.body.lr.ph ], [ %30, %cleanup ]
  %next.addr.076 = phi i64 [ %next, %while.body.lr.ph ], [ %add5, %cleanup ]
  %2 = load ptr, ptr %launches, align 8
  %arrayidx = getelementptr inbounds %struct.Launch, ptr %2, i64 %next.addr.076
  %together.i = getelementptr inbounds %struct.Launch, ptr %2, i64 %next.addr.076, i32 3
  %3 = load i64, ptr %together.i, align 8
  %cmp6.i = icmp sgt i64 %3, 0
  br i1 %cmp6.i, label %for.body.i.preheader, label %if.end3

for.body.i.preheader:
  %xtraiter = and i64 %3, 3
  %4 = icmp ult i64 %3, 4
  br i1 %4, label %tasks_together.exit.unr-lcssa, label %for.body.i.preheader.new

for.body.i.preheader.new:
  %unroll_iter = and i64 %3, -4
  br label %for.body.i

for.body.i:
  %i.08.i = phi i64 [ 0, %for.body.i.preheader.new ], [ %inc.i.3, %for.body.i ]
  %tasks.07.i = phi i64 [ 0, %for.body.i.preheader.new ], [ %add.i.3, %for.body.i ]
  %niter = phi i64 [ 0, %for.body.i.preheader.new ], [ %niter.next.3, %for.body.i ]
  %tasks1.i = getelementptr inbounds %struct.Launch, ptr %arrayidx, i64 %i.08.i, i32 2
  %5 = load i64, ptr %tasks1.i, align 8
  %add.i = add nsw i64 %5, %tasks.07.i
  %inc.i = or i64 %i.08.i, 1
  %tasks1.i.1 = getelementptr inbounds %struct.Launch, ptr %arrayidx, i64 %inc.i, i32 2
  %6 = load i64, ptr %tasks1.i.1, align 8
  %add.i.1 = add nsw i64 %6, %add.i
  %inc.i.1 = or i64 %i.08.i, 2
  %tasks1.i.2 = getelementptr inbounds %struct.Launch, ptr %arrayidx, i64 %inc.i.1, i32 2
  %7 = load i64, ptr %tasks1.i.2, align 8
  %add.i.2 = add nsw i64 %7, %add.i.1
  %inc.i.2 = or i64 %i.08.i, 3
  %tasks1.i.3 = getelementptr inbounds %struct.Launch, ptr %arrayidx, i64 %inc.i.2, i32 2
  %8 = load i64, ptr %tasks1.i.3, align 8
  %add.i.3 = add nsw i64 %8, %add.i.2
  %inc.i.3 = add nuw nsw i64 %i.08.i, 4
  %niter.next.3 = add i64 %niter, 4
  %niter.ncmp.3 = icmp eq i64 %niter.next.3, %unroll_iter
  br i1 %niter.ncmp.3, label %tasks_together.exit.unr-lcssa, label %for.body.i

tasks_together.exit.unr-lcssa:
  %add.i.lcssa.ph = phi i64 [ undef, %for.body.i.preheader ], [ %add.i.3, %for.body.i ]
  %i.08.i.unr = phi i64 [ 0, %for.body.i.preheader ], [ %inc.i.3, %for.body.i ]
  %tasks.07.i.unr = phi i64 [ 0, %for.body.i.preheader ], [ %add.i.3, %for.body.i ]
  %lcmp.mod.not = icmp eq i64 %xtraiter, 0
  br i1 %lcmp.mod.not, label %tasks_together.exit, label %for.body.i.epil

for.body.i.epil:
  %i.08.i.epil = phi i64 [ %inc.i.epil, %for.body.i.epil ], [ %i.08.i.unr, %tasks_together.exit.unr-lcssa ]
  %tasks.07.i.epil = phi i64 [ %add.i.epil, %for.body.i.epil ], [ %tasks.07.i.unr, %tasks_together.exit.unr-lcssa ]
  %epil.iter = phi i64 [ %epil.iter.next, %for.body.i.epil ], [ 0, %tasks_together.exit.unr-lcssa ]
  %tasks1.i.epil = getelementptr inbounds %struct.Launch, ptr %arrayidx, i64 %i.08.i.epil, i32 2
  %9 = load i64, ptr %tasks1.i.epil, align 8
  %add.i.epil = add nsw i64 %9, %tasks.07.i.epil
  %inc.i.epil = add nuw nsw i64 %i.08.i.epil, 1
  %epil.iter.next = add i64 %epil.iter, 1
  %epil.iter.cmp.not = icmp eq i64 %epil.iter.next, %xtraiter
  br i1 %epil.iter.cmp.not, label %tasks_together.exit, label %for.body.i.epil

tasks_together.exit:
  %add.i.lcssa = phi i64 [ %add.i.lcssa.ph, %tasks_together.exit.unr-lcssa ], [ %add.i.epil, %for.body.i.epil ]
  %cmp1 = icmp sgt i64 %add.i.lcssa, 1
  br i1 %cmp1, label %while.end, label %if.end

if.end:
  %tobool.not = icmp eq i64 %add.i.lcssa, 0
  br i1 %tobool.not, label %if.end3, label %if.then2

if.then2:
  %tasks9.i = getelementptr inbounds %struct.Launch, ptr %2, i64 %next.addr.076, i32 2
  %10 = load i64, ptr %tasks9.i, align 8
  %cmp.not10.i = icmp sgt i64 %10, 0
  br i1 %cmp.not10.i, label %run_task.exit, label %for.body.i42

for.body.i42:
  %11 = phi i64 [ %12, %for.body.i42 ], [ %10, %if.then2 ]
  %launch.addr.012.i = phi ptr [ %incdec.ptr.i, %for.body.i42 ], [ %arrayidx, %if.then2 ]
  %task.addr.011.i = phi i64 [ %sub.i, %for.body.i42 ], [ 0, %if.then2 ]
  %sub.i = sub nsw i64 %task.addr.011.i, %11
  %incdec.ptr.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.012.i, i64 1
  %tasks.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.012.i, i64 1, i32 2
  %12 = load i64, ptr %tasks.i, align 8
  %cmp.not.i = icmp slt i64 %sub.i, %12
  br i1 %cmp.not.i, label %run_task.exit, label %for.body.i42

run_task.exit:
  %task.addr.0.lcssa.i = phi i64 [ 0, %if.then2 ], [ %sub.i, %for.body.i42 ]
  %launch.addr.0.lcssa.i = phi ptr [ %arrayidx, %if.then2 ], [ %incdec.ptr.i, %for.body.i42 ]
  %13 = load ptr, ptr %launch.addr.0.lcssa.i, align 8
  %args.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.0.lcssa.i, i64 0, i32 1
  %14 = load ptr, ptr %args.i, align 8
  %15 = load ptr, ptr %scratch.i, align 8
  %16 = load i64, ptr %scratch_bytes.i, align 16
  %mul.i = mul nsw i64 %16, %thread
  %add.ptr.i = getelementptr inbounds i8, ptr %15, i64 %mul.i
  call void %13(ptr noundef %14, i64 noundef %task.addr.0.lcssa.i, ptr noundef %add.ptr.i) #7
  %.pre = load i64, ptr %together.i, align 8
  br label %if.end3

if.end3:
  %17 = phi i64 [ %.pre, %run_task.exit ], [ %3, %if.end ], [ %3, %while.body ]
  %tasks.0.lcssa.i6670 = phi i64 [ %add.i.lcssa, %run_task.exit ], [ 0, %if.end ], [ 0, %while.body ]
  %18 = load ptr, ptr %times_ns.i, align 8
  %tobool.not.i = icmp eq ptr %18, null
  br i1 %tobool.not.i, label %cleanup, label %if.end.i

if.end.i:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %now.i) #6
  %call.i = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %now.i) #7
  %cmp6.i43 = icmp sgt i64 %17, 0
  br i1 %cmp6.i43, label %for.body.i48.preheader, label %for.cond.cleanup.i

for.body.i48.preheader:
  %xtraiter83 = and i64 %17, 1
  %19 = icmp eq i64 %17, 1
  br i1 %19, label %for.cond.cleanup.i.loopexit.unr-lcssa, label %for.body.i48.preheader.new

for.body.i48.preheader.new:
  %unroll_iter86 = and i64 %17, -2
  br label %for.body.i48

for.cond.cleanup.i.loopexit.unr-lcssa:
  %i.07.i.unr = phi i64 [ 0, %for.body.i48.preheader ], [ %add.1, %for.body.i48 ]
  %lcmp.mod85.not = icmp eq i64 %xtraiter83, 0
  br i1 %lcmp.mod85.not, label %for.cond.cleanup.i, label %for.body.i48.epil

for.body.i48.epil:
  %20 = load i64, ptr %now.i, align 8
  %mul.i44.epil = mul nsw i64 %20, 1000000000
  %21 = load i64, ptr %nanoseconds.i, align 8
  %add.i45.epil = add nsw i64 %mul.i44.epil, %21
  %22 = load ptr, ptr %times_ns.i, align 8
  %add.epil = add nuw nsw i64 %i.07.i.unr, 1
  %add2.i.epil = add i64 %add.epil, %next.addr.076
  %arrayidx.i.epil = getelementptr inbounds i64, ptr %22, i64 %add2.i.epil
  store i64 %add.i45.epil, ptr %arrayidx.i.epil, align 8
  br label %for.cond.cleanup.i

for.cond.cleanup.i:
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %now.i) #6
  %.pre81 = load i64, ptr %together.i, align 8
  br label %cleanup

for.body.i48:
  %i.07.i = phi i64 [ 0, %for.body.i48.preheader.new ], [ %add.1, %for.body.i48 ]
  %niter87 = phi i64 [ 0, %for.body.i48.preheader.new ], [ %niter87.next.1, %for.body.i48 ]
  %23 = load i64, ptr %now.i, align 8
  %mul.i44 = mul nsw i64 %23, 1000000000
  %24 = load i64, ptr %nanoseconds.i, align 8
  %add.i45 = add nsw i64 %mul.i44, %24
  %25 = load ptr, ptr %times_ns.i, align 8
  %add = or i64 %i.07.i, 1
  %add2.i = add i64 %add, %next.addr.076
  %arrayidx.i = getelementptr inbounds i64, ptr %25, i64 %add2.i
  store i64 %add.i45, ptr %arrayidx.i, align 8
  %26 = load i64, ptr %now.i, align 8
  %mul.i44.1 = mul nsw i64 %26, 1000000000
  %27 = load i64, ptr %nanoseconds.i, align 8
  %add.i45.1 = add nsw i64 %mul.i44.1, %27
  %28 = load ptr, ptr %times_ns.i, align 8
  %add.1 = add nuw nsw i64 %i.07.i, 2
  %add2.i.1 = add i64 %add.1, %next.addr.076
  %arrayidx.i.1 = getelementptr inbounds i64, ptr %28, i64 %add2.i.1
  store i64 %add.i45.1, ptr %arrayidx.i.1, align 8
  %niter87.next.1 = add nuw i64 %niter87, 2
  %niter87.ncmp.1 = icmp eq i64 %niter87.next.1, %unroll_iter86
  br i1 %niter87.ncmp.1, label %for.cond.cleanup.i.loopexit.unr-lcssa, label %for.body.i48

cleanup:
  %29 = phi i64 [ %.pre81, %for.cond.cleanup.i ], [ %17, %if.end3 ]
  %add5 = add nsw i64 %29, %next.addr.076
  %30 = load i64, ptr %count, align 16
  %cmp = icmp slt i64 %add5, %30
  br i1 %cmp, label %while.body, label %while.end

while.end:
  %31 = phi i64 [ %0, %entry ], [ %1, %tasks_together.exit ], [ %30, %cleanup ]
  %next.addr.0.lcssa = phi i64 [ %next, %entry ], [ %next.addr.076, %tasks_together.exit ], [ %add5, %cleanup ]
  %tasks.1 = phi i64 [ 0, %entry ], [ %add.i.lcssa, %tasks_together.exit ], [ %tasks.0.lcssa.i6670, %cleanup ]
  %cmp7 = icmp eq i64 %next.addr.0.lcssa, %31
  br i1 %cmp7, label %if.then8, label %if.end12

if.then8:
  %ticket.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 11
  %32 = load atomic i64, ptr %ticket.i monotonic, align 64
  %shr.i = and i64 %32, -4294967296
  %or.i = add i64 %shr.i, 6442450944
  store atomic i64 %or.i, ptr %ticket.i seq_cst, align 64
  %tobool9.not = icmp eq i64 %thread, 0
  br i1 %tobool9.not, label %cleanup14, label %if.then10

if.then10:
  %wakeups.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 15
  %33 = atomicrmw add ptr %wakeups.i, i32 1 seq_cst, align 4
  %sleepers.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 16
  %34 = load atomic i32, ptr %sleepers.i seq_cst, align 4
  %tobool.not.i49 = icmp eq i32 %34, 0
  br i1 %tobool.not.i49, label %cleanup14, label %if.then.i

if.then.i:
  %futex.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 4
  %35 = load i64, ptr %futex.i, align 32
  %call.i50 = call i64 (i64, ...) @syscall(i64 noundef %35, ptr noundef nonnull %wakeups.i, i32 noundef 129, i64 noundef 2147483647, i32 noundef 0, i32 noundef 0, i32 noundef 0) #7
  br label %cleanup14

if.end12:
  %current = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 8
  store i64 %next.addr.0.lcssa, ptr %current, align 64
  %tasks13 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 9
  store i64 %tasks.1, ptr %tasks13, align 8
  %unfinished = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 13
  store atomic i64 %tasks.1, ptr %unfinished monotonic, align 64
  %ticket.i52 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 11
  %36 = load atomic i64, ptr %ticket.i52 monotonic, align 64
  %shr.i53 = and i64 %36, -4294967296
  %shl.i54 = add i64 %shr.i53, 4294967296
  %conv.i = and i64 %tasks.1, 4294967295
  %or.i55 = or i64 %shl.i54, %conv.i
  store atomic i64 %or.i55, ptr %ticket.i52 seq_cst, align 64
  %wakeups.i56 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 15
  %37 = atomicrmw add ptr %wakeups.i56, i32 1 seq_cst, align 4
  %sleepers.i57 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 16
  %38 = load atomic i32, ptr %sleepers.i57 seq_cst, align 4
  %tobool.not.i58 = icmp eq i32 %38, 0
  br i1 %tobool.not.i58, label %cleanup14, label %if.then.i61

if.then.i61:
  %sub = add nsw i64 %tasks.1, -1
  %futex.i59 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 4
  %39 = load i64, ptr %futex.i59, align 32
  %call.i60 = call i64 (i64, ...) @syscall(i64 noundef %39, ptr noundef nonnull %wakeups.i56, i32 noundef 129, i64 noundef %sub, i32 noundef 0, i32 noundef 0, i32 noundef 0) #7
  br label %cleanup14

cleanup14:
  ret void
}

; Function Attrs: nounwind
define void @ts_stop(ptr noundef %team) local_unnamed_addr #2 {
entry:
  %stopped = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 17
  store atomic i32 1, ptr %stopped seq_cst, align 8
  %ticket.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 11
  %0 = load atomic i64, ptr %ticket.i monotonic, align 64
  %shr.i = and i64 %0, -4294967296
  %or.i = add i64 %shr.i, 6442450944
  store atomic i64 %or.i, ptr %ticket.i seq_cst, align 64
  %wakeups.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 15
  %1 = atomicrmw add ptr %wakeups.i, i32 1 seq_cst, align 4
  %sleepers.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 16
  %2 = load atomic i32, ptr %sleepers.i seq_cst, align 4
  %tobool.not.i = icmp eq i32 %2, 0
  br i1 %tobool.not.i, label %wake_sleepers.exit, label %if.then.i

if.then.i:
  %futex.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 4
  %3 = load i64, ptr %futex.i, align 32
  %call.i = tail call i64 (i64, ...) @syscall(i64 noundef %3, ptr noundef nonnull %wakeups.i, i32 noundef 129, i64 noundef 2147483647, i32 noundef 0, i32 noundef 0, i32 noundef 0) #7
  br label %wake_sleepers.exit

wake_sleepers.exit:
  ret void
}

declare i64 @syscall(i64 noundef, ...) local_unnamed_addr

declare i32 @clock_gettime(i32 noundef, ptr noundef) local_unnamed_addr

attributes #0 = { mustprogress nofree norecurse nosync nounwind willreturn memory(none) }
attributes #1 = { mustprogress nofree norecurse nosync nounwind willreturn memory(argmem: write) }
attributes #2 = { nounwind }
attributes #3 = { mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite) }
attributes #5 = { nobuiltin }
attributes #6 = { nounwind }
attributes #7 = { nobuiltin nounwind }
