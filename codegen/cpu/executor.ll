; Made from executor.c by `python -m tilestitch.codegen.cpu.executor`; do not edit.
%struct.Team = type { i64, ptr, i64, i64, i64, ptr, i64, ptr, i64, i64, [48 x i8], i64, [56 x i8], i64, [56 x i8], i32, i32, i32, [52 x i8] }
%struct.timespec = type { i64, i64 }
%struct.Launch = type { ptr, ptr, i64, i64 }

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
define void @ts_run(ptr noundef %team, ptr noundef %launches, i64 noundef %count, ptr noundef %times_ns) local_unnamed_addr #2 {
entry:
  %now.i35 = alloca %struct.timespec, align 8
  %now.i = alloca %struct.timespec, align 8
  %launches1 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 5
  store ptr %launches, ptr %launches1, align 8
  %count2 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 6
  store i64 %count, ptr %count2, align 16
  %times_ns3 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 7
  store ptr %times_ns, ptr %times_ns3, align 8
  %tobool.not.i = icmp eq ptr %times_ns, null
  br i1 %tobool.not.i, label %record_time.exit, label %if.end.i

if.end.i:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %now.i) #6
  %call.i = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %now.i) #7
  %nanoseconds.i = getelementptr inbounds %struct.timespec, ptr %now.i, i64 0, i32 1
  %0 = load i64, ptr %now.i, align 8
  %mul.i = mul nsw i64 %0, 1000000000
  %1 = load i64, ptr %nanoseconds.i, align 8
  %add.i = add nsw i64 %mul.i, %1
  %2 = load ptr, ptr %times_ns3, align 8
  store i64 %add.i, ptr %2, align 8
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %now.i) #6
  br label %record_time.exit

record_time.exit:
  %3 = load i64, ptr %team, align 64
  %cmp = icmp eq i64 %3, 1
  br i1 %cmp, label %for.cond.preheader, label %if.end

for.cond.preheader:
  %cmp459 = icmp sgt i64 %count, 0
  br i1 %cmp459, label %for.cond5.preheader.lr.ph, label %return

for.cond5.preheader.lr.ph:
  %scratch.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 1
  %nanoseconds.i40 = getelementptr inbounds %struct.timespec, ptr %now.i35, i64 0, i32 1
  br label %for.cond5.preheader

for.cond5.preheader:
  %i.060 = phi i64 [ 0, %for.cond5.preheader.lr.ph ], [ %add, %record_time.exit49 ]
  %tasks = getelementptr inbounds %struct.Launch, ptr %launches, i64 %i.060, i32 2
  %4 = load i64, ptr %tasks, align 8
  %cmp657 = icmp sgt i64 %4, 0
  br i1 %cmp657, label %for.body8.lr.ph, label %for.cond.cleanup7

for.body8.lr.ph:
  %arrayidx = getelementptr inbounds %struct.Launch, ptr %launches, i64 %i.060
  br label %for.body8

for.cond.cleanup7:
  %add = add nuw nsw i64 %i.060, 1
  %5 = load ptr, ptr %times_ns3, align 8
  %tobool.not.i37 = icmp eq ptr %5, null
  br i1 %tobool.not.i37, label %record_time.exit49, label %if.end.i39

if.end.i39:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %now.i35) #6
  %call.i38 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %now.i35) #7
  %6 = load i64, ptr %now.i35, align 8
  %mul.i43 = mul nsw i64 %6, 1000000000
  %7 = load i64, ptr %nanoseconds.i40, align 8
  %add.i44 = add nsw i64 %mul.i43, %7
  %8 = load ptr, ptr %times_ns3, align 8
  %arrayidx.i45 = getelementptr inbounds i64, ptr %8, i64 %add
  store i64 %add.i44, ptr %arrayidx.i45, align 8
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %now.i35) #6
  br label %record_time.exit49

record_time.exit49:
  %exitcond.not = icmp eq i64 %add, %count
  br i1 %exitcond.not, label %return, label %for.cond5.preheader

for.body8:
  %9 = phi i64 [ %4, %for.body8.lr.ph ], [ %15, %run_task.exit ]
  %task.058 = phi i64 [ 0, %for.body8.lr.ph ], [ %inc, %run_task.exit ]
  %cmp.not10.i = icmp sgt i64 %9, %task.058
  br i1 %cmp.not10.i, label %run_task.exit, label %for.body.i50

for.body.i50:
  %10 = phi i64 [ %11, %for.body.i50 ], [ %9, %for.body8 ]
  %launch.addr.012.i = phi ptr [ %incdec.ptr.i, %for.body.i50 ], [ %arrayidx, %for.body8 ]
  %task.addr.011.i = phi i64 [ %sub.i, %for.body.i50 ], [ %task.058, %for.body8 ]
  %sub.i = sub nsw i64 %task.addr.011.i, %10
  %incdec.ptr.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.012.i, i64 1
  %tasks.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.012.i, i64 1, i32 2
  %11 = load i64, ptr %tasks.i, align 8
  %cmp.not.i = icmp slt i64 %sub.i, %11
  br i1 %cmp.not.i, label %run_task.exit, label %for.body.i50

run_task.exit:
  %task.addr.0.lcssa.i = phi i64 [ %task.058, %for.body8 ], [ %sub.i, %for.body.i50 ]
  %launch.addr.0.lcssa.i = phi ptr [ %arrayidx, %for.body8 ], [ %incdec.ptr.i, %for.body.i50 ]
  %12 = load ptr, ptr %launch.addr.0.lcssa.i, align 8
  %args.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.0.lcssa.i, i64 0, i32 1
  %13 = load ptr, ptr %args.i, align 8
  %14 = load ptr, ptr %scratch.i, align 8
  call void %12(ptr noundef %13, i64 noundef %task.addr.0.lcssa.i, ptr noundef %14) #7
  %inc = add nuw nsw i64 %task.058, 1
  %15 = load i64, ptr %tasks, align 8
  %cmp6 = icmp slt i64 %inc, %15
  br i1 %cmp6, label %for.body8, label %for.cond.cleanup7

if.end:
  call fastcc void @advance(ptr noundef nonnull %team, i64 noundef 0, i64 noundef 0) #5
  %spins.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 3
  %ticket.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 11
  %sleepers.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 16
  %wakeups3.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 15
  %futex.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 4
  %call64 = call fastcc i64 @work(ptr noundef nonnull %team, i64 noundef 0) #5
  %and65 = and i64 %call64, 2147483648
  %tobool.not.not66 = icmp eq i64 %and65, 0
  br i1 %tobool.not.not66, label %if.end15, label %return

if.end15:
  %call67 = phi i64 [ %call, %cleanup ], [ %call64, %if.end ]
  %16 = load i64, ptr %spins.i, align 8
  %cmp26.i = icmp sgt i64 %16, 0
  br i1 %cmp26.i, label %for.body.i51, label %for.end.i

for.body.i51:
  %i.027.i = phi i64 [ %inc.i52, %if.end.i53 ], [ 0, %if.end15 ]
  %17 = load atomic i64, ptr %ticket.i monotonic, align 64
  %cmp1.not.i = icmp eq i64 %17, %call67
  br i1 %cmp1.not.i, label %if.end.i53, label %cleanup

if.end.i53:
  call void asm sideeffect "pause", "~{dirflag},~{fpsr},~{flags}"() #6
  %inc.i52 = add nuw nsw i64 %i.027.i, 1
  %18 = load i64, ptr %spins.i, align 8
  %cmp.i = icmp slt i64 %inc.i52, %18
  br i1 %cmp.i, label %for.body.i51, label %for.end.i

for.end.i:
  %19 = atomicrmw add ptr %sleepers.i, i32 1 seq_cst, align 4
  %20 = load atomic i32, ptr %wakeups3.i seq_cst, align 64
  %21 = load atomic i64, ptr %ticket.i seq_cst, align 64
  %cmp7.i = icmp eq i64 %21, %call67
  br i1 %cmp7.i, label %if.then8.i, label %if.end10.i

if.then8.i:
  %22 = load i64, ptr %futex.i, align 32
  %call.i54 = call i64 (i64, ...) @syscall(i64 noundef %22, ptr noundef nonnull %wakeups3.i, i32 noundef 128, i32 noundef %20, i32 noundef 0, i32 noundef 0, i32 noundef 0) #7
  br label %if.end10.i

if.end10.i:
  %23 = atomicrmw sub ptr %sleepers.i, i32 1 seq_cst, align 4
  br label %cleanup

cleanup:
  %call = call fastcc i64 @work(ptr noundef nonnull %team, i64 noundef 0) #5
  %and = and i64 %call, 2147483648
  %tobool.not.not = icmp eq i64 %and, 0
  br i1 %tobool.not.not, label %if.end15, label %return

return:
  ret void
}

; Function Attrs: nounwind
define internal fastcc void @advance(ptr noundef %team, i64 noundef %next, i64 noundef %thread) unnamed_addr #2 {
entry:
  %now.i = alloca %struct.timespec, align 8
  %count = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 6
  %0 = load i64, ptr %count, align 16
  %cmp74 = icmp sgt i64 %0, %next
  br i1 %cmp74, label %while.body.lr.ph, label %while.end

while.body.lr.ph:
  %launches = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 5
  %scratch.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 1
  %scratch_bytes.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 2
  %times_ns.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 7
  %nanoseconds.i = getelementptr inbounds %struct.timespec, ptr %now.i, i64 0, i32 1
  br label %while.body

while.body:
  %1 = phi i64 [ %0, %while.body.lr.ph ], [ %30, %cleanup ]
  %next.addr.075 = phi i64 [ %next, %while.body.lr.ph ], [ %add5, %cleanup ]
  %2 = load ptr, ptr %launches, align 8
  %arrayidx = getelementptr inbounds %struct.Launch, ptr %2, i64 %next.addr.075
  %together.i = getelementptr inbounds %struct.Launch, ptr %2, i64 %next.addr.075, i32 3
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
  %tasks9.i = getelementptr inbounds %struct.Launch, ptr %2, i64 %next.addr.075, i32 2
  %10 = load i64, ptr %tasks9.i, align 8
  %cmp.not10.i = icmp sgt i64 %10, 0
  br i1 %cmp.not10.i, label %run_task.exit, label %for.body.i41

for.body.i41:
  %11 = phi i64 [ %12, %for.body.i41 ], [ %10, %if.then2 ]
  %launch.addr.012.i = phi ptr [ %incdec.ptr.i, %for.body.i41 ], [ %arrayidx, %if.then2 ]
  %task.addr.011.i = phi i64 [ %sub.i, %for.body.i41 ], [ 0, %if.then2 ]
  %sub.i = sub nsw i64 %task.addr.011.i, %11
  %incdec.ptr.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.012.i, i64 1
  %tasks.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.012.i, i64 1, i32 2
  %12 = load i64, ptr %tasks.i, align 8
  %cmp.not.i = icmp slt i64 %sub.i, %12
  br i1 %cmp.not.i, label %run_task.exit, label %for.body.i41

run_task.exit:
  %task.addr.0.lcssa.i = phi i64 [ 0, %if.then2 ], [ %sub.i, %for.body.i41 ]
  %launch.addr.0.lcssa.i = phi ptr [ %arrayidx, %if.then2 ], [ %incdec.ptr.i, %for.body.i41 ]
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
  %tasks.0.lcssa.i6569 = phi i64 [ %add.i.lcssa, %run_task.exit ], [ 0, %if.end ], [ 0, %while.body ]
  %18 = load ptr, ptr %times_ns.i, align 8
  %tobool.not.i = icmp eq ptr %18, null
  br i1 %tobool.not.i, label %cleanup, label %if.end.i

if.end.i:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %now.i) #6
  %call.i = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %now.i) #7
  %cmp6.i42 = icmp sgt i64 %17, 0
  br i1 %cmp6.i42, label %for.body.i47.preheader, label %for.cond.cleanup.i

for.body.i47.preheader:
  %xtraiter82 = and i64 %17, 1
  %19 = icmp eq i64 %17, 1
  br i1 %19, label %for.cond.cleanup.i.loopexit.unr-lcssa, label %for.body.i47.preheader.new

for.body.i47.preheader.new:
  %unroll_iter85 = and i64 %17, -2
  br label %for.body.i47

for.cond.cleanup.i.loopexit.unr-lcssa:
  %i.07.i.unr = phi i64 [ 0, %for.body.i47.preheader ], [ %add.1, %for.body.i47 ]
  %lcmp.mod84.not = icmp eq i64 %xtraiter82, 0
  br i1 %lcmp.mod84.not, label %for.cond.cleanup.i, label %for.body.i47.epil

for.body.i47.epil:
  %20 = load i64, ptr %now.i, align 8
  %mul.i43.epil = mul nsw i64 %20, 1000000000
  %21 = load i64, ptr %nanoseconds.i, align 8
  %add.i44.epil = add nsw i64 %mul.i43.epil, %21
  %22 = load ptr, ptr %times_ns.i, align 8
  %add.epil = add nuw nsw i64 %i.07.i.unr, 1
  %add2.i.epil = add i64 %add.epil, %next.addr.075
  %arrayidx.i.epil = getelementptr inbounds i64, ptr %22, i64 %add2.i.epil
  store i64 %add.i44.epil, ptr %arrayidx.i.epil, align 8
  br label %for.cond.cleanup.i

for.cond.cleanup.i:
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %now.i) #6
  %.pre80 = load i64, ptr %together.i, align 8
  br label %cleanup

for.body.i47:
  %i.07.i = phi i64 [ 0, %for.body.i47.preheader.new ], [ %add.1, %for.body.i47 ]
  %niter86 = phi i64 [ 0, %for.body.i47.preheader.new ], [ %niter86.next.1, %for.body.i47 ]
  %23 = load i64, ptr %now.i, align 8
  %mul.i43 = mul nsw i64 %23, 1000000000
  %24 = load i64, ptr %nanoseconds.i, align 8
  %add.i44 = add nsw i64 %mul.i43, %24
  %25 = load ptr, ptr %times_ns.i, align 8
  %add = or i64 %i.07.i, 1
  %add2.i = add i64 %add, %next.addr.075
  %arrayidx.i = getelementptr inbounds i64, ptr %25, i64 %add2.i
  store i64 %add.i44, ptr %arrayidx.i, align 8
  %26 = load i64, ptr %now.i, align 8
  %mul.i43.1 = mul nsw i64 %26, 1000000000
  %27 = load i64, ptr %nanoseconds.i, align 8
  %add.i44.1 = add nsw i64 %mul.i43.1, %27
  %28 = load ptr, ptr %times_ns.i, align 8
  %add.1 = add nuw nsw i64 %i.07.i, 2
  %add2.i.1 = add i64 %add.1, %next.addr.075
  %arrayidx.i.1 = getelementptr inbounds i64, ptr %28, i64 %add2.i.1
  store i64 %add.i44.1, ptr %arrayidx.i.1, align 8
  %niter86.next.1 = add nuw i64 %niter86, 2
  %niter86.ncmp.1 = icmp eq i64 %niter86.next.1, %unroll_iter85
  br i1 %niter86.ncmp.1, label %for.cond.cleanup.i.loopexit.unr-lcssa, label %for.body.i47

cleanup:
  %29 = phi i64 [ %.pre80, %for.cond.cleanup.i ], [ %17, %if.end3 ]
  %add5 = add nsw i64 %29, %next.addr.075
  %30 = load i64, ptr %count, align 16
  %cmp = icmp slt i64 %add5, %30
  br i1 %cmp, label %while.body, label %while.end

while.end:
  %31 = phi i64 [ %0, %entry ], [ %1, %tasks_together.exit ], [ %30, %cleanup ]
  %next.addr.0.lcssa = phi i64 [ %next, %entry ], [ %next.addr.075, %tasks_together.exit ], [ %add5, %cleanup ]
  %tasks.1 = phi i64 [ 0, %entry ], [ %add.i.lcssa, %tasks_together.exit ], [ %tasks.0.lcssa.i6569, %cleanup ]
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
  %tobool.not.i48 = icmp eq i32 %34, 0
  br i1 %tobool.not.i48, label %cleanup14, label %cleanup14.sink.split

if.end12:
  %current = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 8
  store i64 %next.addr.0.lcssa, ptr %current, align 64
  %tasks13 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 9
  store i64 %tasks.1, ptr %tasks13, align 8
  %unfinished = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 13
  store atomic i64 %tasks.1, ptr %unfinished monotonic, align 64
  %ticket.i51 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 11
  %35 = load atomic i64, ptr %ticket.i51 monotonic, align 64
  %shr.i52 = and i64 %35, -4294967296
  %shl.i53 = add i64 %shr.i52, 4294967296
  %conv.i = and i64 %tasks.1, 4294967295
  %or.i54 = or i64 %shl.i53, %conv.i
  store atomic i64 %or.i54, ptr %ticket.i51 seq_cst, align 64
  %wakeups.i55 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 15
  %36 = atomicrmw add ptr %wakeups.i55, i32 1 seq_cst, align 4
  %sleepers.i56 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 16
  %37 = load atomic i32, ptr %sleepers.i56 seq_cst, align 4
  %tobool.not.i57 = icmp eq i32 %37, 0
  br i1 %tobool.not.i57, label %cleanup14, label %cleanup14.sink.split

cleanup14.sink.split:
  %wakeups.i55.sink = phi ptr [ %wakeups.i, %if.then10 ], [ %wakeups.i55, %if.end12 ]
  %futex.i58 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 4
  %38 = load i64, ptr %futex.i58, align 32
  %call.i59 = call i64 (i64, ...) @syscall(i64 noundef %38, ptr noundef nonnull %wakeups.i55.sink, i32 noundef 129, i32 noundef 2147483647, i32 noundef 0, i32 noundef 0, i32 noundef 0) #7
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
  %call.i = tail call i64 (i64, ...) @syscall(i64 noundef %3, ptr noundef nonnull %wakeups.i, i32 noundef 129, i32 noundef 2147483647, i32 noundef 0, i32 noundef 0, i32 noundef 0) #7
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
